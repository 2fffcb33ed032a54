"""Data parallel training: collectives recorded into the step's graph, gradients averaged in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from trcomp import flags
from trcomp.runtime import reductions, storage
from trcomp.runtime.distributed import world_size
from trcomp.runtime.ops import collectives  # noqa: F401 - registers the rules
from trcomp.runtime.recording import emit, put_back, tensors_of
from trcomp.runtime.sync import sync


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: Mapping[str, Any] | None = None,
) -> Any:
    """Average the gradients over the ranks, then step; returns what `optimizer.step` returns.

    Args:
        optimizer: Its parameters' gradients are averaged in place, inside the step's graph.
        barrier: Whether this ends the step, for scripts without a device loader.
        optimizer_args: Keyword arguments of `optimizer.step`, such as a closure.
    """
    reduce_gradients(optimizer)
    loss = optimizer.step(**(optimizer_args or {}))
    if barrier:
        sync()
    return loss


def reduce_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Average the gradients of the optimizer's parameters over the ranks, in place."""
    world = world_size()
    if world == 1:
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    _all_reduce([p.grad for p in parameters if p.grad is not None], "sum", 1 / world)


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
        groups: None, or one group of all ranks.

    Raises:
        UnsupportedError: Another reduction, or several groups.
    """
    reductions.check(reduce_type, groups, world_size())
    if isinstance(inputs, torch.Tensor):
        result = inputs.detach().clone()
        _all_reduce([result], reduce_type, scale)
        return result
    _all_reduce(list(inputs), reduce_type, scale)
    return None


def all_gather(value: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """All ranks' tensors, concatenated along `dim` in the order of ranks."""
    world = world_size()
    if world == 1:
        return value.detach().clone()
    dim %= value.dim()
    size = tuple(n * world if i == dim else n for i, n in enumerate(value.shape))
    made = [storage.output(size, value.dtype)]
    return tensors_of(emit("trcomp::all_gather", (value.detach(), dim), made))[0]


def broadcast(tensors: Sequence[torch.Tensor], root: int = 0) -> None:
    """Give every rank the values of rank `root`, in place."""
    if world_size() > 1 and tensors:
        _in_place("trcomp::broadcast", tensors, root)


def _all_reduce(tensors: Sequence[torch.Tensor], reduce_type: str, scale: float) -> None:
    if world_size() > 1 and tensors:
        bucket_bytes = flags.BUCKET_MB.get() * 2**20
        _in_place("trcomp::all_reduce", tensors, reduce_type, scale, bucket_bytes)
    elif scale != 1:
        for tensor in tensors:
            tensor.detach().mul_(scale)


def _in_place(name: str, tensors: Sequence[torch.Tensor], *attributes: Any) -> None:
    """Record a collective that gives each tensor a new value."""
    held = [tensor.detach() for tensor in tensors]
    made = [
        storage.output(tuple(t.size()), t.dtype, t.stride())
        if storage.is_whole(t)
        else storage.output(tuple(t.size()), t.dtype)
        for t in held
    ]
    node = emit(name, (held, *attributes), made)
    for index, tensor in enumerate(held):
        put_back(tensor, node, index)
