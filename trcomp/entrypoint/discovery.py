"""The job's topology, from the contract's hosts and what this machine turns out to have."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from trcomp import flags
from trcomp.contract import Contract
from trcomp.env import gpus, interfaces
from trcomp.env.topology import DeviceKind, Topology, uniform, wanted_devices
from trcomp.errors import BackendUnavailableError, MissingExtraError, Problem, SpecError

_NAME_TIMEOUT_SECONDS = 900.0
"""Hosts of a cluster start minutes apart; SageMaker's own containers wait as long."""


def discovered(
    contract: Contract, environ: Mapping[str, str], gpu_ids: Sequence[str] | None = None
) -> Topology:
    """The hosts that ranks run on; every one of them has as many devices as this one.

    Args:
        contract: The job as this host sees it.
        environ: The job's environment.
        gpu_ids: The GPUs of this host; None looks for them.

    Raises:
        SpecError: The job asks for devices or groups that cannot be.
        MissingExtraError: There are GPUs, and nothing that lets JAX use them.
        BackendUnavailableError: There are none, and the environment admits no CPU.
    """
    types = sorted({group.instance_type for group in contract.rank_groups})
    if len(types) > 1:
        allowed = "hosts of one instance type: ranks are counted alike on every host."
        raise SpecError([Problem("instance_groups", types, allowed)])
    found = gpus.found(environ) if gpu_ids is None else gpu_ids
    kind, count = devices(environ, found)
    ranked = contract.current_host in contract.rank_hosts
    if contract.settings.compiler_enabled and ranked:
        if kind == "gpu":
            _require_plugin()
        elif _needs_gpu(environ):
            raise BackendUnavailableError(
                f"No GPU was found, and JAX_PLATFORMS={environ['JAX_PLATFORMS']} admits nothing "
                "else.",
                "`trcomp doctor` says what keeps a GPU from being found; leave the variable out to "
                "train on the CPU.",
            )
    addresses = _addresses(environ)
    return uniform(
        contract.rank_hosts,
        count,
        kind,
        addresses=addresses,
        network_interface=_interface(contract, addresses),
    )


def devices(environ: Mapping[str, str], gpu_ids: Sequence[str]) -> tuple[DeviceKind, int]:
    """What ranks run on, and how many per host: GPUs found, else GPU_NUM_DEVICES, else one CPU.

    GPU_NUM_DEVICES may also leave some GPUs unused. A JAX_PLATFORMS or PJRT_DEVICE that names only
    the CPU hides all of them.

    Raises:
        SpecError: GPU_NUM_DEVICES is no number from 1, more than the GPUs found, or than processes
            that a host could start.
    """
    kind: DeviceKind = "cpu" if _wants_cpu(environ) or not gpu_ids else "gpu"
    wanted = wanted_devices(environ, len(gpu_ids) if kind == "gpu" else 0)
    return kind, wanted or (len(gpu_ids) if kind == "gpu" else 1)


def num_cpus(topology: Topology) -> int:
    """Cores that this host may use; hosts that are one machine in truth share its cores."""
    cores = min(len(os.sched_getaffinity(0)), most_cpus())
    if _on_loopback(host.address for host in topology.hosts):
        return max(1, cores // len(topology.hosts))
    return cores


def most_cpus(cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores' worth of time that a container may take, rounded up; many where nothing limits it.

    Source: the kernel's cgroup-v2.rst, "cpu.max", and sched-bwc.rst for version 1.
    """
    files = ("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")
    for names in files:
        with contextlib.suppress(OSError, ValueError):
            quota, period = " ".join((cgroups / name).read_text() for name in names).split()
            if quota != "max" and int(quota) > 0:
                return math.ceil(int(quota) / int(period))
    return sys.maxsize


def wait_for_names(
    topology: Topology,
    host_index: int | None,
    wait: Callable[[float], object],
    stopped: Callable[[], bool] = lambda: False,
    timeout_seconds: float = _NAME_TIMEOUT_SECONDS,
) -> None:
    """Wait until the hosts' addresses resolve that this one must reach.

    That is rank 0's host, where all meet; it waits for all of them. If each host looked for all,
    a job would ask for names as often as the square of its hosts.

    Args:
        topology: The job's hosts.
        host_index: This host among them; None if it has no ranks, and so need not reach any.
        wait: Waits some seconds, or less if a signal comes.
        stopped: Whether to give up early, without an error.
        timeout_seconds: After this, it is an error.

    Raises:
        BackendUnavailableError: Some host cannot be found; the message names all such hosts.
    """
    deadline = time.monotonic() + timeout_seconds
    reached = {None: (), 0: topology.hosts}.get(host_index, (topology.master,))
    missing = _unresolved([host.address for host in reached])
    while missing and not stopped():
        if time.monotonic() > deadline:
            raise BackendUnavailableError(
                f"Hosts not found after {timeout_seconds:.0f} s: got no address for "
                f"{', '.join(missing)}.",
                "Check that all hosts of the job started and share a network.",
            )
        wait(1.0)
        missing = _unresolved(missing)


def _interface(contract: Contract, addresses: Mapping[str, str]) -> str:
    """The interface between the hosts, empty if it cannot be told."""
    named = contract.network_interface_name
    if _on_loopback(addresses.values()):
        return interfaces.LOOPBACK
    if Path("/sys/class/net", named).exists():
        return named
    if len(contract.rank_hosts) == 1:
        return interfaces.LOOPBACK
    return interfaces.toward(addresses.get(contract.current_host, contract.current_host))


def _on_loopback(addresses: Iterable[str]) -> bool:
    return any(address.startswith("127.") for address in addresses)


def _unresolved(addresses: Sequence[str]) -> list[str]:
    missing = []
    for address in addresses:
        try:
            socket.getaddrinfo(address, None)
        except socket.gaierror:
            missing.append(address)
    return missing


def _platforms(environ: Mapping[str, str]) -> set[str]:
    return {part.strip() for part in environ.get("JAX_PLATFORMS", "").split(",") if part}


def _needs_gpu(environ: Mapping[str, str]) -> bool:
    platforms = _platforms(environ)
    return bool(platforms) and platforms <= {"cuda", "gpu"}


def _wants_cpu(environ: Mapping[str, str]) -> bool:
    platforms = _platforms(environ)
    if platforms:
        return not platforms & {"cuda", "gpu"}
    return environ.get("PJRT_DEVICE") == "CPU"


def _require_plugin() -> None:
    if not entry_points(group="jax_plugins"):
        raise MissingExtraError("jax-cuda13-plugin", "cuda", "Training on this host's GPUs")


def _addresses(environ: Mapping[str, str]) -> dict[str, str]:
    pairs = [part.partition("=") for part in flags.HOST_ADDRESSES.get(environ).split(",") if part]
    broken = [name for name, _, address in pairs if not address]
    if broken:
        text = flags.HOST_ADDRESSES.get(environ)
        allowed = "name=address pairs, comma-separated."
        raise SpecError([Problem(flags.HOST_ADDRESSES.name, text, allowed)])
    return {name.strip(): address.strip() for name, _, address in pairs}
