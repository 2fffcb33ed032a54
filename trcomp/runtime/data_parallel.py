"""Data parallel training: collectives recorded into the step's graph, gradients averaged in it."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from trcomp import flags
from trcomp.errors import UnsupportedError
from trcomp.runtime import client, ir, reductions, source_lines, storage
from trcomp.runtime.buckets import gradients_of
from trcomp.runtime.distributed import rank, world_size
from trcomp.runtime.ops import collectives  # noqa: F401 - registers the rules
from trcomp.runtime.recording import emit, put_all_back, tensors_of
from trcomp.runtime.reduced_step import reduced_step
from trcomp.runtime.reductions import Partition
from trcomp.runtime.sync import evaluate, finish, sync

Groups = Sequence[Sequence[int]] | None


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: Mapping[str, Any] | None = None,
) -> Any:
    """Average the gradients over the ranks, then step; returns what `optimizer.step` returns.

    Args:
        optimizer: Its parameters' gradients are averaged in place, inside the step's graph.
        barrier: Whether this ends the step, for scripts without a device loader.
        optimizer_args: Keyword arguments of `optimizer.step`, such as a closure, whose gradients
            are averaged after each of its calls.
    """
    loss = reduced_step(optimizer, lambda: reduce_gradients(optimizer), optimizer_args)
    if barrier:
        sync()
    return loss


def reduce_gradients(optimizer: torch.optim.Optimizer, groups: Groups = None) -> None:
    """Average the gradients of the optimizer's parameters over the ranks, in place.

    Args:
        optimizer: Whose parameters.
        groups: None, or the ranks of each group; each averages its own.

    Raises:
        UnsupportedError: A rank is in no group or in several.
    """
    partition = reductions.partition(groups, world_size())
    size = group_size(partition)
    if size == 1:
        return
    gradients = gradients_of(optimizer)
    reduce_in_place(gradients, "sum", 1 / size, partition)


def all_reduce(
    reduce_type: str,
    inputs: torch.Tensor | Sequence[torch.Tensor],
    scale: float = 1.0,
    groups: Groups = None,
) -> torch.Tensor | None:
    """Reduce over the ranks and multiply by `scale`.

    Args:
        reduce_type: sum, mul, min, max, and, or, xor.
        inputs: One tensor, which gives a new tensor; or several, which are changed in place.
        scale: Factor for the result.
        groups: None, or the ranks of each group; each reduces its own.

    Raises:
        UnsupportedError: Another reduction, or a rank is in no group or in several.
    """
    reductions.check(reduce_type)
    partition = reductions.partition(groups, world_size())
    if isinstance(inputs, torch.Tensor):
        result = inputs.detach().clone()
        reduce_in_place([result], reduce_type, scale, partition)
        return result
    reduce_in_place(list(inputs), reduce_type, scale, partition)
    return None


def all_gather(value: torch.Tensor, dim: int = 0, groups: Groups = None) -> torch.Tensor:
    """All ranks' tensors, concatenated along `dim` in the order of ranks."""
    return gather(value, dim, reductions.partition(groups, world_size()))


def broadcast(tensors: Sequence[torch.Tensor], root: int = 0) -> None:
    """Give every rank the values of rank `root`, in place."""
    broadcast_in_place(tensors, root, None)


def reduce_scatter(
    reduce_type: str,
    value: torch.Tensor,
    scale: float = 1.0,
    dim: int = 0,
    groups: Groups = None,
) -> torch.Tensor:
    """Reduce over the ranks and multiply by `scale`; each rank gets its share along `dim`.

    Raises:
        UnsupportedError: Another reduction, or a rank is in no group or in several.
        ValueError: The dimension cannot be shared out evenly.
    """
    reductions.check(reduce_type)
    return scatter_reduced(
        value, reduce_type, scale, dim, reductions.partition(groups, world_size())
    )


def all_to_all(
    value: torch.Tensor, split_dim: int = 0, concat_dim: int = 0, groups: Groups = None
) -> torch.Tensor:
    """Split along one dimension, send part i to the group's rank i, join what comes along another.

    Raises:
        UnsupportedError: A rank is in no group or in several.
        ValueError: The dimension cannot be split evenly.
    """
    return exchange(value, split_dim, concat_dim, reductions.partition(groups, world_size()))


def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """What the rank that is paired with this one sends; zeros where there is none.

    Args:
        value: A tensor of the same size on every rank.
        pairs: (source, target) ranks; each is at most once a source and once a target.

    Raises:
        UnsupportedError: A rank is twice a source or twice a target, or is none of the job's.
    """
    ways = tuple((int(source), int(target)) for source, target in pairs)
    for ends in zip(*ways, strict=True):
        if len(set(ends)) < len(ends) or not set(ends) <= set(range(world_size())):
            raise UnsupportedError(
                f"got pairs={list(ways)}; allowed: each of the {world_size()} ranks at most once "
                "as a source and once as a target.",
                "Make several calls.",
            )
    if world_size() == 1:
        return value.detach().clone() if ways else torch.zeros_like(value)
    made = storage.output(tuple(value.shape), value.dtype)
    return _new("trcomp::collective_permute", (value.detach(), ways, None), made)


# What follows takes a partition (`reductions.partition`) in place of groups.


def group_size(partition: Partition) -> int:
    """How many ranks this rank's group has."""
    return world_size() if partition is None else len(reductions.own_group(partition, rank()))


def reduce_in_place(
    tensors: Sequence[torch.Tensor], reduce_type: str, scale: float, partition: Partition
) -> None:
    """Reduce tensors over each group."""
    if group_size(partition) > 1 and tensors:
        arguments = (reduce_type, scale, _bucket_bytes(), partition)
        _in_place("trcomp::all_reduce", tensors, *arguments)
    elif scale != 1:
        for tensor in tensors:
            tensor.detach().mul_(scale)


def broadcast_in_place(tensors: Sequence[torch.Tensor], root: int, partition: Partition) -> None:
    """Give the ranks of `root`'s group its values."""
    if group_size(partition) > 1 and tensors:
        _in_place("trcomp::broadcast", tensors, root, _bucket_bytes(), partition)


def gather(value: torch.Tensor, dim: int, partition: Partition) -> torch.Tensor:
    """The group's tensors, concatenated along `dim`."""
    size = group_size(partition)
    if size == 1:
        return value.detach().clone()
    dim %= value.dim()
    shape = tuple(n * size if i == dim else n for i, n in enumerate(value.shape))
    made = storage.output(shape, value.dtype)
    return _new("trcomp::all_gather", (value.detach(), dim, partition), made)


def scatter_reduced(
    value: torch.Tensor, reduce_type: str, scale: float, dim: int, partition: Partition
) -> torch.Tensor:
    """This rank's share along `dim` of what its group reduces."""
    size = group_size(partition)
    if size == 1:
        return value.detach().clone().mul_(scale) if scale != 1 else value.detach().clone()
    dim %= value.dim()
    made = storage.output(_shared_out(value, dim, size), value.dtype)
    arguments = (value.detach(), reduce_type, scale, dim, partition)
    return _new("trcomp::reduce_scatter", arguments, made)


def scatter_from(rows: torch.Tensor, root: int, partition: Partition) -> torch.Tensor:
    """This rank's row of rank `root`'s tensor, shape (ranks of the group, ...)."""
    if group_size(partition) == 1:
        return rows.detach()[0].clone()
    made = storage.output(tuple(rows.shape[1:]), rows.dtype)
    return _new("trcomp::scatter", (rows.detach(), root, partition), made)


def exchange(
    value: torch.Tensor, split_dim: int, concat_dim: int, partition: Partition
) -> torch.Tensor:
    """Part i along `split_dim` to the group's rank i, joined along `concat_dim`."""
    size = group_size(partition)
    split_dim, concat_dim = split_dim % value.dim(), concat_dim % value.dim()
    if size == 1:
        return value.detach().clone()
    shape = list(_shared_out(value, split_dim, size))
    shape[concat_dim] *= size
    made = storage.output(tuple(shape), value.dtype)
    return _new("trcomp::all_to_all", (value.detach(), split_dim, concat_dim, partition), made)


def _shared_out(value: torch.Tensor, dim: int, size: int) -> tuple[int, ...]:
    if value.shape[dim] % size:
        raise ValueError(
            f"got a tensor of size {tuple(value.shape)}; dimension {dim} must be a multiple of "
            f"{size}, the ranks of the group. Pad it."
        )
    return tuple(n // size if i == dim else n for i, n in enumerate(value.shape))


def _bucket_bytes() -> int:
    return flags.BUCKET_MB.get() * 2**20


def _new(name: str, arguments: tuple[Any, ...], made: ir.Output) -> torch.Tensor:
    """Record a collective that gives a new tensor."""
    node = emit(name, arguments, [made])
    source_lines.note(node)
    (tensor,) = tensors_of(node)
    _owe(tensor)
    return tensor


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
    source_lines.note(node)
    put_all_back(held, node)
    _owe(held[0])


def start_owed() -> None:
    """Start the collectives that are pending; comes before this rank waits for others on the host.

    A peer may be waiting for one of them on its device, and would never come to what is waited for.
    """
    if ir.owes():
        evaluate()


def _owe(tensor: torch.Tensor) -> None:
    """The collective runs even if this rank drops what it makes: the others wait for it."""
    _finish_at_exit()
    ir.owe(storage.value_of(tensor))


@cache
def _finish_at_exit() -> None:
    """The last collectives of a script may be of use to other ranks alone."""
    client.start()  # Joining registers how ranks leave, which comes after what is registered later.
    atexit.register(_finish)


def _finish() -> None:
    if ir.owes() and not hasattr(sys, "last_value"):
        finish()
