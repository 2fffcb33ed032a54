"""`import torch_xla.core.xla_model as xm`: devices, ranks, the step, collectives, saving."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any, TextIO

import torch

import trcomp.runtime as rt
from trcomp.runtime import batches, closures, reductions

from .. import runtime
from .._missing import missing

__getattr__ = missing(__name__)

REDUCE_SUM = "sum"
REDUCE_MUL = "mul"
REDUCE_AND = "and"
REDUCE_OR = "or"
REDUCE_MIN = "min"
REDUCE_MAX = "max"


# Devices.


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """This rank's device. It has one, so `n` is None or 0 whatever the rank."""
    return rt.device(n)


def get_xla_supported_devices(
    devkind: str | None = None, max_devices: int | None = None
) -> list[str]:
    """The devices this process drives, as strings."""
    return [str(rt.device())][:max_devices]


def xla_device_hw(device: Any = None) -> str:
    """`CUDA` or `CPU`."""
    return runtime.device_type()


def xla_real_devices(devices: Sequence[Any] | None = None) -> list[str]:
    """What the devices are, such as `CPU:0` or `CUDA:1`."""
    return [f"{runtime.device_type()}:{rt.local_rank()}"]


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    """Whether the tensor lies on the device of this rank."""
    return tensor.device == rt.device()


def set_replication(device: Any, devices: Any) -> None:
    """Nothing to set: each rank's process drives one device."""


# Ranks.


def get_ordinal(defval: int | None = None) -> int:
    """This process's rank among all of the job's."""
    return rt.rank()


def get_local_ordinal(defval: int | None = None) -> int:
    """This process's rank on its host."""
    return rt.local_rank()


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


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """End the step: compile and run all that is pending."""
    rt.sync(wait)


def wait_device_ops(devices: Sequence[str] = ()) -> None:
    """Compute all that is pending and wait for it."""
    rt.settle()


def add_step_closure(
    closure: Callable[..., Any], args: Sequence[Any] = (), run_async: bool = False
) -> None:
    """Call `closure(*args)` when the step has ended; reading a value there cuts no graph."""
    closures.add(closure, args)


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: Mapping[str, Any] | None = None,
    groups: Sequence[Sequence[int]] | None = None,
    pin_layout: bool = True,
) -> Any:
    """Average the gradients over the ranks and step; `barrier` also ends the step."""
    _check(groups)
    return rt.optimizer_step(optimizer, barrier, optimizer_args)


def reduce_gradients(
    optimizer: torch.optim.Optimizer,
    groups: Sequence[Sequence[int]] | None = None,
    pin_layout: bool = True,
) -> None:
    """Average the gradients of the optimizer's parameters over the ranks, in place."""
    _check(groups)
    rt.reduce_gradients(optimizer)


def _fetch_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return [p.grad for p in parameters if p.grad is not None]


# Collectives.


def all_reduce(
    reduce_type: str,
    inputs: torch.Tensor | Sequence[torch.Tensor],
    scale: float = 1.0,
    groups: Sequence[Sequence[int]] | None = None,
    pin_layout: bool = True,
) -> torch.Tensor | None:
    """Reduce over the ranks: one tensor gives a new one, a list is changed in place."""
    return rt.all_reduce(reduce_type, inputs, scale, groups)


def all_gather(
    value: torch.Tensor,
    dim: int = 0,
    groups: Sequence[Sequence[int]] | None = None,
    output: torch.Tensor | None = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """All ranks' tensors, concatenated along `dim` in the order of ranks."""
    _check(groups)
    gathered = rt.all_gather(value, dim)
    return gathered if output is None else output.copy_(gathered)


def collective_broadcast(
    tensors: Sequence[torch.Tensor],
    root_ordinal: int = 0,
    groups: Sequence[Sequence[int]] | None = None,
    pin_layout: bool = True,
) -> None:
    """Give every rank the values of rank `root_ordinal`, in place."""
    _check(groups)
    rt.broadcast(list(tensors), root_ordinal)


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    rt.broadcast([t.detach() for t in (*model.parameters(), *model.buffers())])
    rt.sync()


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """Wait until every rank is here; the ranks' payloads in order."""
    return rt.rendezvous(tag, payload)


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """`reduce_fn` of all ranks' `data`, in order; any picklable data, tensors arrive on the CPU."""
    payload = pickle.dumps(_maybe_convert_to_cpu(data))
    return reduce_fn([pickle.loads(part) for part in rt.rendezvous(tag, payload)])


def _check(groups: Sequence[Sequence[int]] | None) -> None:
    reductions.check(REDUCE_SUM, groups, rt.world_size())


# The host.


def save(
    data: Any,
    file_or_path: str | os.PathLike[str] | IO[bytes],
    master_only: bool = True,
    global_master: bool = False,
) -> None:
    """`torch.save` of `data` moved to the CPU; every rank must call it.

    Args:
        data: Anything `torch.save` takes.
        file_or_path: Where to.
        master_only: Whether the master alone writes.
        global_master: Whether the master is the job's rank 0, or each host's first rank.
    """
    rt.settle()
    if not master_only or is_master_ordinal(local=not global_master):
        torch.save(_maybe_convert_to_cpu(data), file_or_path)
    rt.rendezvous("torch_xla.core.xla_model.save")


def _maybe_convert_to_cpu(data: Any, convert: bool = True) -> Any:
    return batches.map_tensors(data, _to_cpu) if convert else data


def _to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_cpu:
        return tensor
    moved = tensor.detach().cpu()
    return moved.requires_grad_(tensor.requires_grad) if tensor.is_leaf else moved


def send_cpu_data_to_device(datas: Any, device: Any, input_sharding: Any = None) -> Any:
    """The data with its tensors on the device."""
    return batches.map_tensors(datas, lambda tensor: tensor.to(device))


def get_rng_state(device: str | None = None) -> int:
    """A number that `set_rng_state` takes to repeat what is drawn from here on."""
    return rt.take_rng_state()


def set_rng_state(seed: int, device: str | None = None) -> None:
    """Start the device's random stream at `seed`."""
    rt.manual_seed(seed)


def unlazy(tensors: Iterable[torch.Tensor]) -> None:
    """Compute all that is pending, the tensors with it."""
    rt.settle()
