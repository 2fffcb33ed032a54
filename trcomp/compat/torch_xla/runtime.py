"""`import torch_xla.runtime as xr`: which device, which rank, how many."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import trcomp.runtime as rt
from trcomp import flags
from trcomp.errors import UnsupportedError
from trcomp.runtime import launch

from ._deprecated import replaced_by
from ._missing import missing

__getattr__ = missing(__name__)


def device_type() -> str:
    """`CUDA` or `CPU`; known without starting the device."""
    topology, _ = launch.topology_here()
    return "CUDA" if topology.device_kind == "gpu" else "CPU"


def set_device_type(pjrt_device: str) -> None:
    """Accept the kind of device that this host has.

    Raises:
        UnsupportedError: It is another.
    """
    kinds = {"CUDA": "CUDA", "GPU": "CUDA", "CPU": "CPU"}
    if kinds.get(pjrt_device.upper()) != device_type():
        raise UnsupportedError(
            f"got device type {pjrt_device!r}; this process runs on {device_type()}.",
            "Leave it out: the entrypoint finds the devices before the script starts.",
        )


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


def addressable_runtime_device_count() -> int:
    """Devices this process drives."""
    return rt.device_count()


def runtime_device_attributes(device: str) -> dict[str, Any]:
    """What is known of a device of the job, `CPU:0` or `CUDA:3`: its kind, rank and host."""
    index = int(device.rpartition(":")[2])
    return global_runtime_device_attributes()[index]


def global_runtime_device_attributes() -> list[dict[str, Any]]:
    """The same of each device of the job, in the order of ranks."""
    topology, _ = launch.topology_here()
    kind = device_type()
    return [
        {"name": f"{kind}:{rank.rank}", "device_kind": kind, "host": rank.host.name}
        for rank in topology.ranks()
    ]


def get_master_ip() -> str:
    """Address of rank 0's host."""
    topology, _ = launch.topology_here()
    return topology.master.address


def is_bf16_supported() -> bool:
    """True: XLA computes in bfloat16 everywhere, if not fast everywhere."""
    return True


def use_spmd(auto: bool = False) -> NoReturn:
    """Refused: each rank is a process of its own."""
    raise UnsupportedError(
        "xr.use_spmd() was called: one program for all devices is not offered; each rank is a "
        "process with one device.",
        "Train data-parallel: xm.optimizer_step or DistributedDataParallel.",
    )


def is_spmd() -> bool:
    """False: each rank is a process of its own."""
    return False


@replaced_by("nothing: there is no other runtime")
def using_pjrt() -> bool:
    """True: the runtime is XLA's PJRT client."""
    return True


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Keep executables in a folder, for later processes; comes before the first is compiled.

    They are kept in a folder of the user's without it (`TRCOMP_CACHE`).

    Args:
        path: The folder.
        readonly: Accepted: what is missing is added all the same.
    """
    os.environ[flags.CACHE.name] = path


def get_num_cached_compilation_graph() -> int:
    """Executables that this process holds."""
    if not flags.ENABLED.get():
        return 0
    from trcomp.runtime import executables

    return len(executables._executables)
