"""Variables per rank: right values, a reason for each, and the user's own value wins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trcomp.env.explain import table
from trcomp.env.topology import DeviceKind, Topology, uniform
from trcomp.env.variables import (
    DIALECTS,
    Identity,
    applied,
    for_host,
    for_rank,
    identity,
    merged_flags,
)
from trcomp.errors import ContractError


def two_hosts(kind: DeviceKind = "gpu", devices: int = 4) -> Topology:
    return uniform(["algo-1", "algo-2"], devices, kind, network_interface="eth0")


def environ(topology: Topology, rank: int, **options: object) -> dict[str, str]:
    variables = for_rank(topology, topology.ranks()[rank], **options)  # type: ignore[arg-type]
    return {v.name: v.value for v in variables if v.value is not None}


def test_identity_of_a_rank() -> None:
    found = environ(two_hosts(), 5)
    assert identity(found) == Identity(rank=5, world_size=8, local_rank=1, local_world_size=4)
    assert found["MASTER_ADDR"] == "algo-1"
    assert found["MASTER_PORT"] == "7777"
    assert found["JAX_COORDINATOR_ADDRESS"] == "algo-1:43857"


def test_one_gpu_per_process() -> None:
    found = environ(two_hosts(), 5)
    assert found["CUDA_VISIBLE_DEVICES"] == "1"
    assert found["JAX_LOCAL_DEVICE_IDS"] == "0"
    assert found["JAX_PLATFORMS"] == "cuda,cpu"
    assert (found["PJRT_DEVICE"], found["GPU_NUM_DEVICES"]) == ("CUDA", "4")
    assert (found["PJRT_LOCAL_PROCESS_RANK"], found["PJRT_LOCAL_PROCESS_COUNT"]) == ("1", "4")


@pytest.mark.parametrize(
    ("visible", "own"), [("4,5,6,7", "5"), ("MIG-1,MIG-2", "MIG-2"), ("0, 3", "3")]
)
def test_the_hosts_visible_devices_are_shared_out(visible: str, own: str) -> None:
    found = environ(two_hosts(), 1, user={"CUDA_VISIBLE_DEVICES": visible})
    assert found["CUDA_VISIBLE_DEVICES"] == own


def test_real_torch_xla_picks_its_device_itself() -> None:
    assert "CUDA_VISIBLE_DEVICES" not in environ(two_hosts(), 1, dialects=("pjrt",))


def test_cpu_ranks() -> None:
    found = environ(uniform(["algo-1"], 2, "cpu"), 1, num_cpus=8)
    assert (found["JAX_PLATFORMS"], found["PJRT_DEVICE"]) == ("cpu", "CPU")
    assert found["CPU_NUM_DEVICES"] == "2"
    assert found["OMP_NUM_THREADS"] == found["NPROC"] == "4"
    assert "CUDA_VISIBLE_DEVICES" not in found
    assert not [name for name in found if name.startswith(("NCCL", "XLA_FLAGS"))]


def test_a_lone_rank_keeps_its_threads_and_needs_no_coordinator() -> None:
    found = environ(uniform(["algo-1"], 1, "cpu"), 0, num_cpus=8)
    assert "OMP_NUM_THREADS" not in found
    assert "JAX_COORDINATOR_ADDRESS" not in found


def test_hosts_on_one_machine_do_not_share_a_port() -> None:
    addresses = {"algo-1": "127.1.2.3", "algo-2": "127.1.2.4"}
    topology = uniform(["algo-1", "algo-2"], 1, "cpu", addresses=addresses)
    assert environ(topology, 0)["JAX_COORDINATOR_BIND_ADDRESS"] == "127.1.2.3:43857"
    assert "JAX_COORDINATOR_BIND_ADDRESS" not in environ(topology, 1)
    assert "JAX_COORDINATOR_BIND_ADDRESS" not in environ(two_hosts(), 0)


@pytest.mark.parametrize("efa", [True, False])
def test_efa_variables_only_where_there_is_such_a_device(efa: bool) -> None:
    for dialects in (("jax", "pjrt"), DIALECTS):
        found = environ(two_hosts(), 0, efa=efa, dialects=dialects)
        assert (found.get("FI_PROVIDER") == "efa") is efa
        assert bool([name for name in found if name.startswith(("FI_", "OFI_", "RDMAV_"))]) is efa
    # New libfabric finds RDMA by itself, and aborts if told to use what is not there.
    assert "FI_EFA_USE_DEVICE_RDMA" not in environ(two_hosts(), 0, efa=efa)


def test_nccl_variables_are_for_gpus_and_several_hosts() -> None:
    assert environ(two_hosts(), 0)["NCCL_SOCKET_IFNAME"] == "eth0"
    assert environ(two_hosts("cpu"), 0)["GLOO_SOCKET_IFNAME"] == "eth0"
    assert "NCCL_SOCKET_IFNAME" not in environ(uniform(["algo-1"], 4, "gpu"), 0)


def test_ranks_of_one_machine_listen_on_its_loopback_interface() -> None:
    assert environ(uniform(["algo-1"], 2, "cpu"), 0)["GLOO_SOCKET_IFNAME"] == "lo"
    assert "GLOO_SOCKET_IFNAME" not in environ(uniform(["algo-1"], 1, "cpu"), 0)


def test_the_xrt_dialect() -> None:
    found = environ(two_hosts(devices=8), 9, dialects=("xrt",), efa=True)
    assert found["XRT_WORKERS"] == "localservice:0;algo-1:43857|localservice:1;algo-2:43857"
    assert found["XRT_HOST_ORDINAL"] == "1"
    assert found["XRT_SHARD_WORLD_SIZE"] == "2"
    assert found["XRT_MESH_SERVICE_ADDRESS"] == "algo-1:53957"
    assert found["GPU_NUM_DEVICES"] == "8"
    assert found["NCCL_PROTO"] == "simple"
    assert found["OFI_NCCL_NIC_DUP_CONNS"] == "8"
    assert not [name for name in found if name.startswith(("PJRT_", "JAX_"))]
    alone = environ(uniform(["algo-1"], 8, "gpu"), 0, dialects=("xrt",))
    assert "XRT_MESH_SERVICE_ADDRESS" not in alone


def test_no_xrt_variables_unless_asked_for() -> None:
    assert not [name for name in environ(two_hosts(), 0, efa=True) if name.startswith("XRT_")]


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_the_users_own_value_wins(kind: DeviceKind) -> None:
    topology = two_hosts(kind)
    told_apart = {
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "PJRT_LOCAL_PROCESS_RANK",
        "XRT_HOST_ORDINAL",
        "JAX_LOCAL_DEVICE_IDS",
        "JAX_NUM_CPU_DEVICES",
        "CUDA_VISIBLE_DEVICES",
    }
    plain = environ(topology, 0, efa=True, dialects=DIALECTS, num_cpus=8)
    user = {name: "7" for name in plain if name not in {*told_apart, "XLA_FLAGS"}}
    found = {**user, **environ(topology, 0, efa=True, dialects=DIALECTS, num_cpus=8, user=user)}
    assert {name: found[name] for name in user} == user
    reasons = for_rank(topology, topology.ranks()[0], user=user)
    overridden = next(v for v in reasons if v.name == "PJRT_DEVICE")
    assert overridden.reason.startswith("Your own value; trcomp would set 'C")


def test_a_stale_rank_from_outside_does_not_win() -> None:
    found = environ(two_hosts(), 3, user={"RANK": "0", "LOCAL_RANK": "7", "WORLD_SIZE": "99"})
    assert identity(found) == Identity(3, 8, 3, 4)


@pytest.mark.parametrize(
    ("own", "merged"),
    [
        (None, "--a=1 --b=2"),
        ("", "--a=1 --b=2"),
        ("--b=3", "--a=1 --b=3"),
        ("  --c  --a=0 ", "--b=2 --c  --a=0"),
        ("/etc/flags.txt", "/etc/flags.txt"),
    ],
)
def test_xla_flags_are_merged_and_the_users_win(own: str | None, merged: str) -> None:
    assert merged_flags(["--a=1", "--b=2"], own) == merged


def test_the_users_xla_flags_are_kept() -> None:
    text = environ(two_hosts(), 0, user={"XLA_FLAGS": "--xla_dump_to=/tmp/x"})["XLA_FLAGS"]
    assert "--xla_dump_to=/tmp/x" in text
    assert "latency_hiding" in text


def test_the_proxy_is_for_the_script_and_not_between_ranks() -> None:
    user = {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "inside.example"}
    found = environ(two_hosts(), 0, user=user)
    expected = "inside.example,algo-1,algo-2,localhost,127.0.0.1"
    assert found["no_proxy"] == found["NO_PROXY"] == found["no_grpc_proxy"] == expected
    assert "HTTPS_PROXY" not in found
    assert not [name for name in environ(two_hosts(), 0) if "proxy" in name.lower()]


def test_every_variable_has_one_value_and_a_reason() -> None:
    for row in table(instance_count=2, num_devices=8, efa=True, dialects=DIALECTS, num_cpus=96):
        names = [variable.name for variable in row.variables]
        assert len(names) == len(set(names))
        assert all(variable.reason.endswith(".") for variable in row.variables)


def test_the_table_counts_hosts_as_sagemaker_does() -> None:
    rows = table(instance_count=12, num_devices=1)
    hosts = [row.host for row in rows]
    assert hosts[:4] == ["algo-1", "algo-10", "algo-11", "algo-12"]
    assert [row.rank for row in rows] == list(range(12))


def test_a_script_that_starts_its_ranks_has_none_itself() -> None:
    user = {"RANK": "3", "WORLD_SIZE": "4", "HOME": "/root"}
    found = applied(user, for_host(two_hosts(), 1, user=user))
    assert "RANK" not in found
    assert "WORLD_SIZE" not in found
    assert found["HOME"] == "/root"


def test_identity_without_variables_is_alone() -> None:
    assert identity({}) == Identity(0, 1, 0, 1)


@pytest.mark.parametrize(
    "broken",
    [
        {"RANK": "x"},
        {"RANK": "1"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
        {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"},
    ],
)
def test_a_broken_identity_is_an_error(broken: dict[str, str]) -> None:
    with pytest.raises(ContractError, match="no valid rank: got RANK="):
        identity(broken)


@given(
    hosts=st.integers(1, 12),
    devices=st.integers(1, 8),
    kind=st.sampled_from(["gpu", "cpu"]),
)
def test_ranks_agree_on_everything_but_their_place(
    hosts: int, devices: int, kind: DeviceKind
) -> None:
    topology = uniform([f"algo-{n}" for n in range(hosts)], devices, kind)
    found = [environ(topology, rank) for rank in range(topology.world_size)]
    assert [identity(each).rank for each in found] == list(range(hosts * devices))
    for name in ("MASTER_ADDR", "WORLD_SIZE", "JAX_COORDINATOR_ADDRESS", "PJRT_DEVICE"):
        assert len({each.get(name) for each in found}) == 1
