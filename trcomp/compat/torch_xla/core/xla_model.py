"""`import torch_xla.core.xla_model as xm`: devices, ranks, the step; the rest by import."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TextIO

import torch

import trcomp.runtime as rt
from trcomp.runtime import closures
from trcomp.runtime.reduced_step import reduced_step

from .. import runtime
from .._deprecated import replaced_by
from .._missing import missing
from .._refused import internal
from ..debug.metrics_saver import save_metrics
from ..utils import utils as xu
from ._arena import ToXlaTensorArena, check_view_sharing
from ._async_closures import in_background
from ._buckets import CoalescingBuckets, all_gather_bucketized, reduce_scatter_bucketized
from ._collectives import (
    REDUCE_AND,
    REDUCE_MAX,
    REDUCE_MIN,
    REDUCE_MUL,
    REDUCE_OR,
    REDUCE_SUM,
    _fetch_gradients,
    all_gather,
    all_reduce,
    all_reduce_bucketized_gradients,
    all_to_all,
    broadcast_master_param,
    collective_broadcast,
    collective_permute,
    recv,
    reduce_gradients,
    reduce_scatter,
    send,
)
from ._host import (
    _maybe_convert_to_cpu,
    do_on_ordinals,
    mesh_reduce,
    rendezvous,
    save,
    send_cpu_data_to_device,
    xla_rendezvous,
)
from ._rates import RateTracker
from ._state import (
    MemoryInfo,
    fork_rng,
    get_memory_info,
    get_rng_state,
    get_stablehlo,
    get_stablehlo_bytecode,
    optimization_barrier_,
    set_rng_state,
)

__all__ = [
    "REDUCE_AND",
    "REDUCE_MAX",
    "REDUCE_MIN",
    "REDUCE_MUL",
    "REDUCE_OR",
    "REDUCE_SUM",
    "CoalescingBuckets",
    "MemoryInfo",
    "RateTracker",
    "ToXlaTensorArena",
    "_fetch_gradients",
    "_maybe_convert_to_cpu",
    "all_gather",
    "all_gather_bucketized",
    "all_reduce",
    "all_reduce_bucketized_gradients",
    "all_to_all",
    "broadcast_master_param",
    "check_view_sharing",
    "collective_broadcast",
    "collective_permute",
    "do_on_ordinals",
    "fork_rng",
    "get_memory_info",
    "get_rng_state",
    "get_stablehlo",
    "get_stablehlo_bytecode",
    "mesh_reduce",
    "optimization_barrier_",
    "recv",
    "reduce_gradients",
    "reduce_scatter",
    "reduce_scatter_bucketized",
    "rendezvous",
    "save",
    "send",
    "send_cpu_data_to_device",
    "set_rng_state",
    "xla_rendezvous",
    "xu",
]

__getattr__ = missing(__name__)

DeviceContext = internal("torch_xla.core.xla_model.DeviceContext")
XLA_LIB = internal("torch_xla.core.xla_model.XLA_LIB")


# Devices.


@replaced_by("torch_xla.device()")
def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """This rank's device. It has one, so `n` is None or 0 whatever the rank."""
    return rt.device(n)


def get_xla_supported_devices(
    devkind: str | int | None = None, max_devices: int | None = None
) -> list[str]:
    """The devices this process drives, as strings; the kind, of older releases, is all the same."""
    if isinstance(devkind, int):
        max_devices = devkind
    return [str(rt.device())][:max_devices]


def xla_device_hw(device: Any = None) -> str:
    """`CUDA` or `CPU`."""
    return runtime.device_type()


xla_device_kind = xla_device_hw


def xla_real_devices(devices: Sequence[Any] | None = None) -> list[str]:
    """What the devices are, such as `CPU:0` or `CUDA:1`."""
    count = 1 if devices is None else len(devices)
    return [f"{runtime.device_type()}:{rt.local_rank()}"] * count


def _xla_real_device(device: Any) -> str:
    return xla_real_devices()[0]


def xla_replication_devices(local_devices: Sequence[Any] | None = None) -> list[str]:
    """The devices that take part: one of each rank."""
    return [f"{runtime.device_type()}:{rank}" for rank in range(rt.world_size())]


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    """Whether the tensor lies on the device of this rank."""
    return tensor.device == rt.device()


def set_replication(device: Any, devices: Any) -> None:
    """Nothing to set: each rank's process drives one device."""


# Ranks.


@replaced_by("torch_xla.runtime.global_ordinal()")
def get_ordinal(defval: int | None = None) -> int:
    """This process's rank among all of the job's."""
    return rt.rank()


def get_local_ordinal(defval: int | None = None) -> int:
    """This process's rank on its host."""
    return rt.local_rank()


@replaced_by("torch_xla.runtime.world_size()")
def xrt_world_size(defval: int | None = None) -> int:
    """Number of ranks of the job."""
    return rt.world_size()


def is_master_ordinal(local: bool = True) -> bool:
    """Whether this is rank 0, of its host or (`local=False`) of the job."""
    return (rt.local_rank() if local else rt.rank()) == 0


def master_print(
    *args: Any, fd: TextIO | None = None, local: bool = False, flush: bool = False
) -> None:
    """Print on the master rank alone."""
    if is_master_ordinal(local):
        print(*args, file=fd or sys.stdout, flush=flush)


# The step.


@replaced_by("torch_xla.sync()")
def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """End the step: compile and run all that is pending."""
    end_step(wait)


def end_step(wait: bool = False) -> None:
    """What `torch_xla.sync` does: the step's barrier, its closures, its metrics file."""
    rt.sync(wait or xu.getenv_as("XLA_SYNC_WAIT", bool, False))
    if is_master_ordinal():
        save_metrics()


def wait_device_ops(devices: Sequence[str] = ()) -> None:
    """Compute all that is pending and wait for it."""
    rt.settle()


def add_step_closure(
    closure: Callable[..., Any], args: Sequence[Any] = (), run_async: bool = False
) -> None:
    """Call `closure(*args)` when the step has ended; reading a value there cuts no graph.

    Args:
        closure: What to call.
        args: Its arguments.
        run_async: Whether to call it in the background: the next step does not wait for it. What it
            raises is raised at the end of the next step.
    """
    closures.add(in_background(closure) if run_async else closure, args)


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: Mapping[str, Any] | None = None,
    groups: Sequence[Sequence[int]] | None = None,
    pin_layout: bool = True,
) -> Any:
    """Average the gradients over the ranks and step; `barrier` also ends the step."""
    loss = reduced_step(optimizer, lambda: reduce_gradients(optimizer, groups), optimizer_args)
    if barrier:
        end_step()
    return loss


def unlazy(tensors: Iterable[torch.Tensor]) -> None:
    """Compute all that is pending, the tensors with it."""
    rt.settle()
