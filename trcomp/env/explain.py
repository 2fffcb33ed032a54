"""The table behind `trcomp env --explain`: every variable of every rank, with its reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trcomp.env.topology import DeviceKind, uniform
from trcomp.env.variables import Variable, for_rank
from trcomp.env.xla_flags import for_topology


@dataclass(frozen=True)
class Row:
    """One rank and its variables."""

    rank: int
    host: str
    local_rank: int
    variables: tuple[Variable, ...]


def table(
    *,
    instance_count: int,
    num_devices: int,
    hosts: Sequence[str] | None = None,
    device_kind: DeviceKind = "gpu",
    efa: bool = False,
    dialects: Sequence[str] = ("jax", "pjrt"),
    num_cpus: int | None = None,
    user: Mapping[str, str] | None = None,
    network_interface: str = "eth0",
    unknown_flags: Callable[[Sequence[str]], Sequence[str]] = lambda wanted: (),
) -> tuple[Row, ...]:
    """What a job on such instances would set, for every rank; computed, nothing is probed.

    Args:
        instance_count: Hosts, named algo-1 and on as SageMaker names them.
        num_devices: Devices per host.
        hosts: The names of the hosts that have ranks, if not all of the job's have.
        device_kind: What one rank runs on.
        efa: Whether the hosts have an Elastic Fabric Adapter.
        dialects: Whose variables; see `trcomp.env.variables.DIALECTS`.
        num_cpus: Cores per host, shared out between its ranks; None leaves thread pools alone.
        user: The environment given to the job.
        network_interface: The interface between the hosts.
        unknown_flags: Which of XLA's flags a jaxlib has not: `xla_flags.unknown` asks this one.
    """
    # Text order (algo-1, algo-10, algo-2), as SageMaker lists hosts: ranks follow from it.
    names = sorted(hosts or (f"algo-{number}" for number in range(1, instance_count + 1)))
    topology = uniform(names, num_devices, device_kind, network_interface=network_interface)
    unknown = unknown_flags(for_topology(topology, user or {}))
    return tuple(
        Row(
            rank.rank,
            rank.host.name,
            rank.local_rank,
            for_rank(
                topology,
                rank,
                dialects=dialects,
                efa=efa,
                user=user,
                num_cpus=num_cpus,
                unknown_flags=unknown,
            ),
        )
        for rank in topology.ranks()
    )


def markdown(row: Row) -> str:
    """One rank's variables as a Markdown table."""
    lines = ["| variable | value | reason |", "|---|---|---|"]
    for variable in row.variables:
        value = "removed" if variable.value is None else f"`{variable.value}`".replace("|", "\\|")
        lines.append(f"| `{variable.name}` | {value} | {variable.reason} |")
    return "\n".join(lines)
