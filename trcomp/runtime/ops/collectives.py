"""Collectives as nodes of the step's graph, so that XLA overlaps them with the rest of it.

A rule runs inside `shard_map` over all ranks' devices: its arrays are what this rank holds. Its
last argument is `groups`: None for all ranks, or a partition of them (`reductions.partition`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from trcomp.runtime import client
from trcomp.runtime.buckets import plan_buckets
from trcomp.runtime.client import AXIS
from trcomp.runtime.ops.registry import lowers
from trcomp.runtime.ordering import after
from trcomp.runtime.reductions import Partition, own_group


@lowers("trcomp::all_reduce", collective=True)
def _all_reduce(
    ctx: Any,
    tensors: Sequence[jax.Array],
    reduce_type: str,
    scale: float,
    bucket_bytes: int,
    groups: Partition,
) -> list[jax.Array]:
    """Tensors travel in flat buckets of one dtype; one reduction each costs several times more."""

    def reduce(flat: jax.Array) -> Any:
        return _scaled(_reduce(flat, reduce_type, groups), scale)

    return _in_buckets(tensors, bucket_bytes, reduce)


def _in_buckets(
    tensors: Sequence[jax.Array], bucket_bytes: int, collective: Callable[[jax.Array], Any]
) -> list[jax.Array]:
    results: list[Any] = [None] * len(tensors)
    flat: Any = None
    dtypes, sizes = [t.dtype for t in tensors], [t.nbytes for t in tensors]
    for bucket in plan_buckets(dtypes, sizes, bucket_bytes):
        members = [tensors[index] for index in bucket]
        whole = jnp.concatenate([tensor.reshape(-1) for tensor in members])
        flat = collective(after(whole, flat))
        ends = list(accumulate(tensor.size for tensor in members))[:-1]
        for index, part in zip(bucket, jnp.split(flat, ends), strict=True):
            results[index] = part.reshape(tensors[index].shape)
    return results


def _scaled(reduced: jax.Array, scale: float) -> jax.Array:
    return reduced if scale == 1 else (reduced * scale).astype(reduced.dtype)


def _reduce(value: jax.Array, reduce_type: str, groups: Partition) -> Any:
    if value.dtype == jnp.bool_:
        return _reduce_bools(value, reduce_type, groups)
    if jnp.iscomplexobj(value) and reduce_type == "sum":
        parts = lax.psum(jnp.stack([value.real, value.imag]), AXIS, axis_index_groups=groups)
        return lax.complex(parts[0], parts[1])
    direct = {"sum": lax.psum, "min": lax.pmin, "max": lax.pmax}.get(reduce_type)
    if direct is not None:
        return direct(value, AXIS, axis_index_groups=groups)
    gathered = _gather(value, groups)
    if reduce_type == "mul":
        return jnp.prod(gathered, axis=0, dtype=value.dtype)
    return _BITWISE[reduce_type].reduce(gathered, axis=0)


_BITWISE = {"and": jnp.bitwise_and, "or": jnp.bitwise_or, "xor": jnp.bitwise_xor}


def _reduce_bools(value: jax.Array, reduce_type: str, groups: Partition) -> Any:
    if reduce_type == "xor":
        return lax.psum(value.astype(jnp.int32), AXIS, axis_index_groups=groups) % 2 == 1
    counted = lax.pmax if reduce_type in ("sum", "or", "max") else lax.pmin
    return counted(value.astype(jnp.int32), AXIS, axis_index_groups=groups).astype(jnp.bool_)


@lowers("trcomp::all_gather", collective=True)
def _all_gather(ctx: Any, value: jax.Array, dim: int, groups: Partition) -> Any:
    gathered = jnp.moveaxis(_gather(value, groups), 0, dim)
    size = list(value.shape)
    size[dim] *= gathered.shape[dim]
    return gathered.reshape(size)


@lowers("trcomp::broadcast", collective=True)
def _broadcast(
    ctx: Any, tensors: Sequence[jax.Array], root: int, bucket_bytes: int, groups: Partition
) -> list[jax.Array]:
    is_root = lax.axis_index(AXIS) == root
    return _in_buckets(tensors, bucket_bytes, lambda flat: _from_root(flat, is_root, groups))


def _from_root(value: jax.Array, is_root: jax.Array, groups: Partition) -> Any:
    # `where`, not a product: other ranks may hold NaN.
    return _reduce(jnp.where(is_root, value, jnp.zeros_like(value)), "sum", groups)


@lowers("trcomp::reduce_scatter", collective=True)
def _reduce_scatter(
    ctx: Any, value: jax.Array, reduce_type: str, scale: float, dim: int, groups: Partition
) -> Any:
    """Each rank's share along `dim` of what is reduced."""
    num_ranks, position = _place(ctx, groups)
    summed = reduce_type == "sum" and value.dtype != jnp.bool_ and not jnp.iscomplexobj(value)
    if summed and _alike(groups):
        reduced = lax.psum_scatter(
            value, AXIS, scatter_dimension=dim, axis_index_groups=groups, tiled=True
        )
        return _scaled(reduced, scale)
    share = value.shape[dim] // num_ranks
    reduced = _scaled(_reduce(value, reduce_type, groups), scale)
    return lax.dynamic_slice_in_dim(reduced, position * share, share, dim)


@lowers("trcomp::scatter", collective=True)
def _scatter(ctx: Any, value: jax.Array, root: int, groups: Partition) -> Any:
    """The rank's row of what rank `root` holds."""
    mine = jnp.where(lax.axis_index(AXIS) == root, value, jnp.zeros_like(value))
    return _reduce_scatter(ctx, mine, "sum", 1.0, 0, groups)[0]


@lowers("trcomp::all_to_all", collective=True)
def _all_to_all(
    ctx: Any, value: jax.Array, split_dim: int, concat_dim: int, groups: Partition
) -> Any:
    if _alike(groups):
        return lax.all_to_all(
            value, AXIS, split_dim, concat_dim, axis_index_groups=groups, tiled=True
        )
    num_ranks, position = _place(ctx, groups)
    share = value.shape[split_dim] // num_ranks
    parts = [
        lax.dynamic_slice_in_dim(held, position * share, share, split_dim)
        for held in _gather(value, groups)
    ]
    return jnp.concatenate(parts, concat_dim)


@lowers("trcomp::collective_permute", collective=True)
def _collective_permute(
    ctx: Any, value: jax.Array, pairs: tuple[tuple[int, int], ...], groups: Partition
) -> Any:
    return lax.ppermute(value, AXIS, pairs)


def _gather(value: jax.Array, groups: Partition) -> jax.Array:
    """The values of the group's ranks, stacked in front in the group's order."""
    if _alike(groups):
        return lax.all_gather(value, AXIS, axis_index_groups=groups)
    # XLA gathers over groups of one size only; sums it makes over any.
    assert groups is not None
    held = jnp.zeros((max(map(len, groups)), *value.shape), value.dtype)
    held = lax.dynamic_update_index_in_dim(held, value, _positions(groups), 0)
    return _reduce(held, "sum", groups)[: len(own_group(groups, client.rank()))]


def _alike(groups: Partition) -> bool:
    return groups is None or len({len(group) for group in groups}) == 1


def _place(ctx: Any, groups: Partition) -> tuple[int, Any]:
    """How many ranks the rank's group has, and the rank's position in it."""
    if groups is None:
        return ctx.num_ranks, lax.axis_index(AXIS)
    return len(own_group(groups, client.rank())), _positions(groups)


def _positions(groups: Sequence[Sequence[int]]) -> Any:
    """The rank's position in its group; looked up, so that all ranks have one program."""
    position = {rank: i for group in groups for i, rank in enumerate(group)}
    return jnp.asarray([position[rank] for rank in sorted(position)])[lax.axis_index(AXIS)]
