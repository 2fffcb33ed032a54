"""XLA's flags for a job's collectives, and which of them this machine's jaxlib has."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec

from trcomp import flags
from trcomp.env.topology import Topology

_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
_MB_BETWEEN_HOSTS = 128
"""Between hosts NCCL needs large messages to fill the network. How large was not measured yet."""
_TIMEOUT_SECONDS = 60

# What creates the first client parses XLA_FLAGS, on any device; it aborts, without a core file.
_PROBE = """
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
from jaxlib import xla_client
xla_client.make_cpu_client()
"""


def bucket_mb(topology: Topology, environ: Mapping[str, str]) -> int:
    """How many MiB of gradients travel at once: the user's number, or what suits the topology."""
    between_hosts = topology.device_kind == "gpu" and len(topology.hosts) > 1
    if flags.BUCKET_MB.name in environ or not between_hosts:
        return flags.BUCKET_MB.get(environ)
    return _MB_BETWEEN_HOSTS


def for_topology(topology: Topology, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The flags of a job on GPUs with several ranks; none for others.

    Args:
        topology: The job's hosts and devices.
        environ: The environment that the job was given.
    """
    if topology.device_kind == "cpu" or topology.world_size == 1:
        return ()
    num_bytes = bucket_mb(topology, environ) * 2**20
    return (
        "--xla_gpu_enable_latency_hiding_scheduler=true",
        *(f"--xla_gpu_{name}_combine_threshold_bytes={num_bytes}" for name in _COLLECTIVES),
    )


def name_of(flag: str) -> str:
    """A flag without its dashes and its value."""
    return flag.lstrip("-").partition("=")[0]


def unknown(wanted: Sequence[str]) -> tuple[str, ...]:
    """The names of flags that this machine's jaxlib does not have: each would end a worker.

    jaxlib itself is asked, in processes of their own; GPU plugins are built from the same XLA. A
    machine without jaxlib says nothing of the machines that train: to it, all are known.
    """
    if not wanted or find_spec("jaxlib") is None or _accepted(wanted):
        return ()
    return tuple(name_of(flag) for flag in wanted if not _accepted([flag]))


def _accepted(wanted: Collection[str]) -> bool:
    environ = os.environ | {"XLA_FLAGS": " ".join(wanted)}
    with tempfile.TemporaryDirectory() as elsewhere:
        try:
            probe = subprocess.run(
                [sys.executable, "-P", "-c", _PROBE],
                env=environ,
                cwd=elsewhere,
                capture_output=True,
                timeout=_TIMEOUT_SECONDS,
            )
        except (OSError, subprocess.SubprocessError):
            return False
    return probe.returncode == 0
