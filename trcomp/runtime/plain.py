"""The script API without XLA: the same names on torch's own devices and process group.

With `TrainingCompilerConfig(enabled=False)` the same script runs through here, and JAX is never
imported.
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist

from trcomp import gloo
from trcomp.runtime import closures, own_rank, plain_steps, reductions, stores
from trcomp.runtime.batches import map_tensors
from trcomp.runtime.buckets import gradients_of, plan_buckets
from trcomp.runtime.metrics import counters, metrics, metrics_report
from trcomp.runtime.padding import Padding
from trcomp.runtime.prefetch import ERROR, PrefetchLoader
from trcomp.runtime.reduced_step import reduced_step

__all__ = [
    "DeviceLoader",
    "Padding",
    "all_gather",
    "all_reduce",
    "broadcast",
    "device",
    "device_count",
    "local_rank",
    "manual_seed",
    "metrics",
    "metrics_report",
    "optimizer_step",
    "rank",
    "reduce_gradients",
    "rendezvous",
    "settle",
    "step",
    "sync",
    "take_rng_state",
    "world_size",
]

_REDUCTIONS = {
    "sum": dist.ReduceOp.SUM,
    "mul": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "and": dist.ReduceOp.BAND,
    "or": dist.ReduceOp.BOR,
    "xor": dist.ReduceOp.BXOR,
}


stores.register()


def rank() -> int:
    """This process's rank among all of the job's."""
    return own_rank.identity().rank


def local_rank() -> int:
    """This process's rank on its host."""
    return own_rank.identity().local_rank


def world_size() -> int:
    """Number of ranks of the job."""
    return own_rank.identity().world_size


def device(index: int | None = None) -> torch.device:
    """This rank's GPU if torch has CUDA, else the CPU."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        return torch.device("cpu")
    # A worker that sees one GPU sees it as number 0, whatever its rank.
    chosen = torch.device("cuda", local_rank() % count if index is None else index)
    torch.cuda.set_device(chosen)
    return chosen


def device_count() -> int:
    """Devices this process drives: one."""
    return 1


def sync(wait: bool = False) -> None:
    """Count a step; torch has already computed it, or on a GPU is about to.

    Args:
        wait: Whether to wait for the GPU.
    """
    plain_steps.note_barrier()
    if wait and device().type == "cuda":
        torch.cuda.synchronize()
    closures.run()
    counters.end_script()


def settle() -> None:
    """Nothing is ever pending here; runs the step's closures."""
    closures.run()


def step(function: Any = None, *, max_captures: int = 8) -> Any:
    """The function itself: there is nothing to capture."""
    return (lambda function: function) if function is None else function


def manual_seed(seed: int) -> None:
    """Seed torch's generators."""
    torch.manual_seed(seed)


def take_rng_state() -> int:
    """A number that `manual_seed` takes to repeat what is drawn from here on."""
    state = int(torch.randint(0, 2**63 - 1, ()).item())
    torch.manual_seed(state)
    return state


class DeviceLoader(PrefetchLoader):
    """A loader whose batches lie on this rank's device, and a step mark after each."""

    def __init__(
        self,
        loader: Any,
        device: torch.device | str | None = None,
        prefetch: int | None = None,
        batches_per_execution: int = 1,
        pad: Padding | None = None,
        uneven: str = ERROR,
    ) -> None:
        target = _default_device() if device is None else torch.device(device)
        self._device = target

        def move(batch: Any) -> Any:
            return map_tensors(batch, lambda tensor: tensor.to(target))

        super().__init__(loader, move, sync, prefetch, batches_per_execution, pad, uneven, _lengths)


def _lengths(length: int) -> list[int]:
    return [int(text) for text in rendezvous("trcomp/lengths", str(length).encode())]


_default_device = device


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: Mapping[str, Any] | None = None,
) -> Any:
    """Average the gradients over the ranks, then step; returns what `optimizer.step` returns.

    Args:
        optimizer: Its parameters' gradients are averaged in place.
        barrier: Whether this ends the step, for scripts without a device loader.
        optimizer_args: Keyword arguments of `optimizer.step`, such as a closure, whose gradients
            are averaged after each of its calls.
    """
    loss = reduced_step(optimizer, lambda: reduce_gradients(optimizer), optimizer_args)
    if barrier:
        sync()
    return loss


def reduce_gradients(
    optimizer: torch.optim.Optimizer, groups: Sequence[Sequence[int]] | None = None
) -> None:
    """Average the gradients of the optimizer's parameters over the ranks, in place.

    Args:
        optimizer: Whose parameters.
        groups: None, or the ranks of each group; each averages its own.

    Raises:
        UnsupportedError: A rank is in no group or in several.
    """
    partition = reductions.partition(groups, world_size())
    size = _group_size(partition)
    if size == 1:
        return
    gradients = gradients_of(optimizer)
    _all_reduce_buckets(gradients, dist.ReduceOp.SUM, 1 / size, partition)


def all_reduce(
    reduce_type: str,
    inputs: torch.Tensor | Sequence[torch.Tensor],
    scale: float = 1.0,
    groups: Sequence[Sequence[int]] | None = None,
) -> torch.Tensor | None:
    """Reduce over the ranks and multiply by `scale`.

    Args:
        reduce_type: sum, mul, min, max, and, or.
        inputs: One tensor, which gives a new tensor; or several, which are changed in place.
        scale: Factor for the result.
        groups: None, or the ranks of each group; each reduces its own.

    Raises:
        UnsupportedError: Another reduction, or a rank is in no group or in several.
    """
    reductions.check(reduce_type)
    partition = reductions.partition(groups, world_size())
    reduction = _REDUCTIONS[reduce_type]
    if isinstance(inputs, torch.Tensor):
        result = inputs.detach().clone()
        _all_reduce_buckets([result], reduction, scale, partition)
        return result
    _all_reduce_buckets(list(inputs), reduction, scale, partition)
    return None


def all_gather(
    value: torch.Tensor, dim: int = 0, groups: Sequence[Sequence[int]] | None = None
) -> torch.Tensor:
    """All ranks' tensors, concatenated along `dim` in the order of ranks."""
    if world_size() == 1:
        return value.detach().clone()
    _connect()
    partition = reductions.partition(groups, world_size())
    group = None if partition is None else _own_group(partition)
    parts = [torch.empty_like(value) for _ in range(_group_size(partition))]
    dist.all_gather(parts, value.detach().contiguous(), group)
    return torch.cat(parts, dim)


def broadcast(tensors: Sequence[torch.Tensor], root: int = 0) -> None:
    """Give every rank the values of rank `root`, in place."""
    if world_size() == 1:
        return
    _connect()
    with torch.no_grad():
        for tensor in tensors:
            whole = tensor.detach().contiguous()
            dist.broadcast(whole, root)
            tensor.copy_(whole)


def rendezvous(tag: str, payload: bytes = b"") -> list[bytes]:
    """Wait until every rank is here; the ranks' payloads in order."""
    if world_size() == 1:
        return [payload]
    _connect()
    payloads: list[Any] = [None] * world_size()
    dist.all_gather_object(payloads, payload)
    return payloads


@torch.no_grad()
def _all_reduce_buckets(
    tensors: list[torch.Tensor],
    reduction: Any,
    scale: float,
    partition: reductions.Partition = None,
) -> None:
    distributed = world_size() > 1
    group = None
    if distributed:
        _connect()
        group = None if partition is None else _own_group(partition)
    for bucket in plan_buckets([t.dtype for t in tensors], [t.nbytes for t in tensors]):
        members = [tensors[index] for index in bucket]
        flat = torch.cat([tensor.reshape(-1) for tensor in members])
        if distributed:
            dist.all_reduce(flat, reduction, group)
        if scale != 1:
            flat = (flat * scale).to(flat.dtype)
        parts = torch.split(flat, [tensor.numel() for tensor in members])
        for tensor, part in zip(members, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def _connect() -> None:
    """Join the ranks' process group at first use, unless the script has made one."""
    if not dist.is_initialized():
        on_gpu = device().type == "cuda"
        dist.init_process_group("nccl" if on_gpu else "gloo", rank=rank(), world_size=world_size())
        atexit.register(_disconnect)
    own_rank.keep()


def _group_size(partition: reductions.Partition) -> int:
    return world_size() if partition is None else len(reductions.own_group(partition, rank()))


@lru_cache
def _own_group(partition: tuple[tuple[int, ...], ...]) -> dist.ProcessGroup:
    """This rank's process group of a partition; every rank makes all of them."""
    made = {ranks: dist.new_group(list(ranks)) for ranks in partition}
    return made[reductions.own_group(partition, rank())]


def _disconnect() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
        gloo.let_finish()
