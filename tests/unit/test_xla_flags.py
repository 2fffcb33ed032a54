"""XLA's flags follow the topology, and one that jaxlib has not never reaches a worker."""

from __future__ import annotations

import pytest

from trcomp import flags
from trcomp.env import explain, xla_flags
from trcomp.env.topology import Topology, uniform
from trcomp.env.variables import Variable, for_rank

THRESHOLD = "xla_gpu_all_reduce_combine_threshold_bytes"


def gpus(num_hosts: int, num_devices: int) -> Topology:
    return uniform([f"algo-{i + 1}" for i in range(num_hosts)], num_devices, "gpu")


def variables(
    topology: Topology, user: dict[str, str], unknown: tuple[str, ...] = ()
) -> dict[str, Variable]:
    found = for_rank(topology, topology.ranks()[0], user=user, unknown_flags=unknown)
    return {variable.name: variable for variable in found}


@pytest.mark.parametrize("topology", [gpus(1, 1), uniform(["a", "b"], 4, "cpu")])
def test_without_several_gpus_there_are_none(topology: Topology) -> None:
    assert xla_flags.for_topology(topology, {}) == ()
    found = variables(topology, {})
    assert "XLA_FLAGS" not in found
    assert flags.BUCKET_MB.name not in found


@pytest.mark.parametrize(
    ("num_hosts", "user", "size"),
    [
        (1, {}, 32),
        (2, {}, 128),
        (1, {"TRCOMP_BUCKET_MB": "8"}, 8),
        (2, {"TRCOMP_BUCKET_MB": "8"}, 8),
    ],
)
def test_xla_combines_as_much_as_a_bucket_of_gradients_holds(
    num_hosts: int, user: dict[str, str], size: int
) -> None:
    found = variables(gpus(num_hosts, 8), user)
    text = found["XLA_FLAGS"].value or ""
    assert f"--{THRESHOLD}={size * 2**20}" in text.split()
    assert "--xla_gpu_enable_latency_hiding_scheduler=true" in text.split()
    bucket = found.get(flags.BUCKET_MB.name)
    assert (user.get("TRCOMP_BUCKET_MB") if bucket is None else bucket.value) == (
        None if size == 32 else str(size)
    )


def test_the_users_own_flags_win() -> None:
    own = f"--{THRESHOLD}=5 --xla_dump_to=/tmp/x"
    text = variables(gpus(2, 8), {"XLA_FLAGS": own})["XLA_FLAGS"].value or ""
    assert text.endswith(own)
    assert text.count(THRESHOLD) == 1


def test_what_jaxlib_has_not_is_left_out_and_named() -> None:
    found = variables(gpus(2, 8), {}, (THRESHOLD,))["XLA_FLAGS"]
    assert THRESHOLD not in (found.value or "")
    assert "latency_hiding" in (found.value or "")
    assert found.reason.endswith(f"This jaxlib has no {THRESHOLD}.")
    rows = explain.table(instance_count=1, num_devices=2, unknown_flags=lambda wanted: [THRESHOLD])
    (shown,) = [variable for variable in rows[0].variables if variable.name == "XLA_FLAGS"]
    assert shown.reason == found.reason


def test_this_jaxlib_has_all_that_are_set_and_is_asked() -> None:
    pytest.importorskip("jaxlib")
    wanted = xla_flags.for_topology(gpus(2, 8), {})
    assert xla_flags.unknown(wanted) == ()
    assert xla_flags.unknown([*wanted, "--xla_gpu_of_another_version=1"]) == (
        "xla_gpu_of_another_version",
    )


def test_a_launcher_without_jaxlib_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla_flags, "find_spec", lambda name: None)
    assert xla_flags.unknown(["--xla_gpu_of_another_version=1"]) == ()
