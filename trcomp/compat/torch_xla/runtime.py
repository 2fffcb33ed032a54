"""`import torch_xla.runtime as xr`: which device, which rank, how many."""

from __future__ import annotations

from typing import Any

import trcomp.runtime as rt
from trcomp import flags
from trcomp.runtime import launch

from ._deprecated import replaced_by
from ._missing import missing

__getattr__ = missing(__name__)


def device_type() -> str:
    """`CUDA` or `CPU`; known without starting the device."""
    topology, _ = launch.topology_here()
    return "CUDA" if topology.device_kind == "gpu" else "CPU"


def world_size() -> int:
    """Number of ranks of the job."""
    return rt.world_size()


def global_ordinal() -> int:
    """This process's rank among all of the job's."""
    return rt.rank()


def local_ordinal() -> int:
    """This process's rank on its host."""
    return rt.local_rank()


def host_index() -> int:
    """This host's place among the job's hosts."""
    return flags.HOST_INDEX.get()


def process_index() -> int:
    """This process's place among the job's: its rank."""
    return rt.rank()


def process_count() -> int:
    """Processes of the job: one per rank."""
    return rt.world_size()


def local_process_count() -> int:
    """Processes on this host."""
    topology, index = launch.topology_here()
    return topology.hosts[index].num_devices


def global_device_count() -> int:
    """Devices of the job: one per rank."""
    return rt.world_size()


def global_runtime_device_count() -> int:
    """Devices of the job: one per rank."""
    return rt.world_size()


def local_device_count() -> int:
    """Devices of this host."""
    return local_process_count()


def addressable_device_count() -> int:
    """Devices this process drives."""
    return rt.device_count()


def is_bf16_supported() -> bool:
    """True: XLA computes in bfloat16 everywhere, if not fast everywhere."""
    return True


def is_spmd() -> bool:
    """False: each rank is a process of its own."""
    return False


@replaced_by("nothing: there is no other runtime")
def using_pjrt() -> bool:
    """True: the runtime is XLA's PJRT client."""
    return True


def initialize_cache(path: str, readonly: bool = False) -> Any:
    """Accepted and without effect for now: executables are kept in memory."""
