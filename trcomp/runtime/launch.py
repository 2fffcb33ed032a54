"""Starts a host's ranks from inside a script: what `xmp.spawn` and `torch_xla.launch` do.

rank already (the entrypoint started it)  --> the function runs in place
script once per host, or outside any job  --> one process per device, its environment set before
                                              it imports torch, its lines prefixed by its rank
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trcomp import flags
from trcomp.env import gpus, variables, xla_flags
from trcomp.env.topology import DeviceKind, Topology, uniform, wanted_devices
from trcomp.errors import DeviceError, UnsupportedError
from trcomp.runtime import own_rank, report
from trcomp.runtime.rank_processes import RankProcesses


def spawn(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    nprocs: int | None = None,
    *,
    join: bool = True,
    start_method: str = "spawn",
) -> RankProcesses | None:
    """Run `fn(local_rank, *args)` on each of this host's ranks.

    Args:
        fn: The function; processes are started with it, so it must be importable.
        args: Its further arguments.
        nprocs: None, or the number of this host's devices. 1 runs `fn` in place on one device.
        join: Whether to wait; else the started ranks are returned.
        start_method: "spawn". A forked process cannot use the device.

    Raises:
        DeviceError: `nprocs` does not fit the devices, or this process has used the device.
        UnsupportedError: Another start method.
        Exception: What the first failing rank raised.
    """
    if start_method != "spawn":
        raise UnsupportedError(
            f"got start_method={start_method!r}; allowed: 'spawn'.",
            "A forked process cannot use the device. Leave start_method out.",
        )
    if own_rank.is_given():
        identity = own_rank.identity()
        _check_count(nprocs, identity.local_world_size)
        return _in_place(fn, identity.local_rank, args, join)
    topology, host_index = topology_here()
    num_devices = topology.hosts[host_index].num_devices
    _check_count(nprocs, num_devices)
    if topology.world_size == 1 or (nprocs == 1 and len(topology.hosts) == 1):
        return _in_place(fn, 0, args, join)
    _check_untouched()
    report.cancel()
    processes = RankProcesses.start(fn, args, environments(topology, host_index))
    if not join:
        return processes
    processes.join()
    return None


def topology_here() -> tuple[Topology, int]:
    """The job's topology and this host's index in it; outside a job, this machine alone.

    Its devices are the GPUs found, else GPU_NUM_DEVICES virtual ones on the CPU, else one.
    """
    text = flags.TOPOLOGY.get()
    if text:
        return Topology.from_json(text), flags.HOST_INDEX.get()
    found = gpus.found(os.environ)
    kind: DeviceKind = "gpu" if found else "cpu"
    count = len(found) or wanted_devices(os.environ) or 1
    return uniform(["localhost"], count, kind, addresses={"localhost": _loopback(os.getpid())}), 0


def _loopback(pid: int) -> str:
    """An address of this machine for one process: scripts started side by side share a port."""
    return f"127.{64 + (pid >> 16)}.{pid >> 8 & 255}.{pid & 255}"


def environments(topology: Topology, host_index: int) -> list[dict[str, str]]:
    """The whole environment of each of a host's ranks, in the order of local ranks."""
    ours = {
        flags.WORKER.name: "1",
        flags.TOPOLOGY.name: topology.to_json(),
        flags.HOST_INDEX.name: str(host_index),
    }
    if topology.world_size > 1:
        ours[flags.COORDINATOR.name] = topology.coordinator
    dialects = ("jax", "pjrt") if flags.ENABLED.get() else ("pjrt",)
    efa = gpus.efa_devices() > 0
    unknown = xla_flags.unknown(xla_flags.for_topology(topology, os.environ))
    return [
        variables.applied(
            {**os.environ, **ours},
            variables.for_rank(
                topology,
                rank,
                dialects=dialects,
                efa=efa,
                user=os.environ,
                num_cpus=_num_cpus(topology),
                unknown_flags=unknown,
            ),
        )
        for rank in topology.local_ranks(host_index)
    ]


def _num_cpus(topology: Topology) -> int:
    """Cores this host may use; hosts that are one machine in truth share its cores."""
    cores = len(os.sched_getaffinity(0))
    shared = topology.master.address.startswith("127.")
    return max(1, cores // len(topology.hosts)) if shared else cores


def _check_count(nprocs: int | None, num_devices: int) -> None:
    if nprocs in (None, 1, num_devices):
        return
    devices = "1 device" if num_devices == 1 else f"{num_devices} devices"
    raise DeviceError(
        f"got nprocs={nprocs}, but this host has {devices}: each rank drives one.",
        f"Leave nprocs out, or give the job {nprocs} devices (`--devices {nprocs}` or "
        f"GPU_NUM_DEVICES={nprocs} makes virtual ones on the CPU).",
    )


def _check_untouched() -> None:
    module = getattr(torch, "xla", None)
    if module is not None and module.is_initialized():
        raise DeviceError(
            "This process has used the xla device before it starts the ranks; it would hold memory "
            "that theirs need.",
            "Move all use of the device into the function that the ranks run.",
        )


def _in_place(
    fn: Callable[..., Any], local_rank: int, args: Sequence[Any], join: bool
) -> RankProcesses | None:
    fn(local_rank, *args)
    return None if join else RankProcesses([])
