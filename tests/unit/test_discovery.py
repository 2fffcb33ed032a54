"""The topology, from the contract and what the machine has."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trcomp import flags
from trcomp.contract import Contract, InstanceGroup, Settings
from trcomp.entrypoint import discovery
from trcomp.entrypoint.discovery import (
    devices,
    discovered,
    most_cpus,
    num_cpus,
    wait_for_names,
)
from trcomp.env.topology import uniform
from trcomp.errors import BackendUnavailableError, MissingExtraError, SpecError


def contract(*hosts: str, enabled: bool | None = None, **changes: object) -> Contract:
    values = {
        "job_name": "job-1",
        "hosts": hosts or ("algo-1",),
        "current_host": "algo-1",
        "hyperparameters": {},
        "settings": Settings(program="train.py", compiler_enabled=enabled),
        "instance_type": "local_process",
    }
    return Contract(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("environ", "gpu_ids", "expected"),
    [
        ({}, (), ("cpu", 1)),
        ({"GPU_NUM_DEVICES": "4"}, (), ("cpu", 4)),
        ({}, ("0", "1"), ("gpu", 2)),
        ({"GPU_NUM_DEVICES": "1"}, ("0", "1"), ("gpu", 1)),
        ({"JAX_PLATFORMS": "cpu"}, ("0", "1"), ("cpu", 1)),
        ({"PJRT_DEVICE": "CPU", "GPU_NUM_DEVICES": "3"}, ("0", "1"), ("cpu", 3)),
        ({"JAX_PLATFORMS": "cuda,cpu"}, ("0",), ("gpu", 1)),
        ({"JAX_PLATFORMS": ""}, ("0",), ("gpu", 1)),
    ],
)
def test_devices(
    environ: dict[str, str], gpu_ids: tuple[str, ...], expected: tuple[str, int]
) -> None:
    assert devices(environ, gpu_ids) == expected


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "²"])
def test_a_wrong_number_of_devices(text: str) -> None:
    with pytest.raises(SpecError, match=r"GPU_NUM_DEVICES: got .*a whole number from 1"):
        devices({"GPU_NUM_DEVICES": text}, ())


def test_more_devices_than_gpus() -> None:
    with pytest.raises(SpecError, match="GPU_NUM_DEVICES: got '3'; 1 to 2, the GPUs found"):
        devices({"GPU_NUM_DEVICES": "3"}, ("0", "1"))


def test_gpus_that_nothing_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "entry_points", lambda group: [])
    with pytest.raises(MissingExtraError, match=r"pip install 'trcomp\[cuda\]'"):
        discovered(contract(enabled=True), {}, ("0",))
    # A script that does not go through XLA needs no plugin.
    for enabled in (False, None):
        assert discovered(contract(enabled=enabled), {}, ("0",)).device_kind == "gpu"


def test_given_addresses_mean_one_machine() -> None:
    environ = {flags.HOST_ADDRESSES.name: "algo-1=127.1.2.3,algo-2=127.1.2.4"}
    topology = discovered(contract("algo-1", "algo-2"), environ, ())
    assert [host.address for host in topology.hosts] == ["127.1.2.3", "127.1.2.4"]
    assert topology.network_interface == "lo"
    assert num_cpus(topology) <= num_cpus(uniform(["algo-1"], 1, "cpu"))


def test_broken_addresses() -> None:
    with pytest.raises(SpecError, match="name=address pairs"):
        discovered(contract(), {flags.HOST_ADDRESSES.name: "algo-1"}, ())


def test_an_interface_that_is_not_there_is_not_named() -> None:
    hosts = ("no-such-host-1.invalid", "no-such-host-2.invalid")
    found = discovered(contract(*hosts, network_interface_name="no-such-interface"), {}, ())
    assert found.network_interface == ""
    # Ranks of one host need none that leads to others.
    found = discovered(contract(network_interface_name="no-such-interface"), {}, ())
    assert found.network_interface == "lo"


def test_hosts_of_different_types_are_refused() -> None:
    groups = (
        InstanceGroup("a", "ml.g5.xlarge", ("algo-1",)),
        InstanceGroup("b", "ml.p4d.24xlarge", ("algo-2",)),
    )
    mixed = contract("algo-1", "algo-2", instance_groups=groups)
    with pytest.raises(SpecError, match="hosts of one instance type"):
        discovered(mixed, {}, ())


def test_hosts_are_waited_for_and_named_when_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    missing = [["algo-1", "algo-2"], ["algo-2"], []]
    monkeypatch.setattr(discovery, "_unresolved", lambda addresses: missing.pop(0))
    wait_for_names(uniform(["algo-1", "algo-2"], 1, "cpu"), 0, waits.append)
    assert waits == [1.0, 1.0]
    monkeypatch.setattr(discovery, "_unresolved", lambda addresses: ["algo-2"])
    with pytest.raises(BackendUnavailableError, match="got no address for algo-2"):
        wait_for_names(uniform(["algo-1"], 1, "cpu"), 0, waits.append, timeout_seconds=-1)
    wait_for_names(uniform(["algo-1"], 1, "cpu"), 0, waits.append, lambda: True)


def test_only_the_first_host_looks_for_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(discovery, "_unresolved", lambda addresses: asked.extend(addresses))
    topology = uniform(["algo-1", "algo-2", "algo-3"], 1, "cpu")
    for host_index in (2, None, 0):
        wait_for_names(topology, host_index, lambda seconds: None)
    assert asked == ["algo-1", "algo-1", "algo-2", "algo-3"]


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "max 100000\n"}, sys.maxsize),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, sys.maxsize),
        ({}, sys.maxsize),
    ],
)
def test_a_containers_share_of_the_cores_is_read_from_its_cgroup(
    tmp_path: Path, files: dict[str, str], cores: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert most_cpus(tmp_path) == cores
