"""Collectives as nodes of the step's graph, so that XLA overlaps them with the rest of it.

A rule runs inside `shard_map` over all ranks' devices: its arrays are what this rank holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from trcomp.runtime.buckets import plan_buckets
from trcomp.runtime.client import AXIS
from trcomp.runtime.ops.registry import lowers


@lowers("trcomp::all_reduce", collective=True)
def _all_reduce(
    ctx: Any, tensors: Sequence[jax.Array], reduce_type: str, scale: float, bucket_bytes: int
) -> list[jax.Array]:
    """Tensors travel in flat buckets of one dtype; one reduction each costs several times more."""
    results: list[Any] = [None] * len(tensors)
    dtypes, sizes = [t.dtype for t in tensors], [t.nbytes for t in tensors]
    for bucket in plan_buckets(dtypes, sizes, bucket_bytes):
        members = [tensors[index] for index in bucket]
        flat = jnp.concatenate([tensor.reshape(-1) for tensor in members])
        reduced = _reduce(flat, reduce_type)
        if scale != 1:
            reduced = (reduced * scale).astype(flat.dtype)
        ends = list(accumulate(tensor.size for tensor in members))[:-1]
        for index, part in zip(bucket, jnp.split(reduced, ends), strict=True):
            results[index] = part.reshape(tensors[index].shape)
    return results


def _reduce(flat: jax.Array, reduce_type: str) -> Any:
    if flat.dtype == jnp.bool_:
        counted = {"sum": lax.pmax, "or": lax.pmax, "max": lax.pmax}.get(reduce_type, lax.pmin)
        return counted(flat.astype(jnp.int32), AXIS).astype(jnp.bool_)
    direct = {"sum": lax.psum, "min": lax.pmin, "max": lax.pmax}.get(reduce_type)
    if direct is not None:
        return direct(flat, AXIS)
    gathered = lax.all_gather(flat, AXIS)
    if reduce_type == "mul":
        return jnp.prod(gathered, axis=0, dtype=flat.dtype)
    bitwise = jnp.bitwise_and if reduce_type == "and" else jnp.bitwise_or
    return bitwise.reduce(gathered, axis=0)


@lowers("trcomp::all_gather", collective=True)
def _all_gather(ctx: Any, value: jax.Array, dim: int) -> Any:
    return lax.all_gather(value, AXIS, axis=dim, tiled=True)


@lowers("trcomp::broadcast", collective=True)
def _broadcast(ctx: Any, tensors: Sequence[jax.Array], root: int) -> list[jax.Array]:
    is_root = lax.axis_index(AXIS) == root
    return [_from_root(tensor, is_root) for tensor in tensors]


def _from_root(tensor: jax.Array, is_root: jax.Array) -> Any:
    if tensor.dtype == jnp.bool_:
        return _from_root(tensor.astype(jnp.int8), is_root).astype(jnp.bool_)
    # `where`, not a product: other ranks may hold NaN.
    return lax.psum(jnp.where(is_root, tensor, jnp.zeros_like(tensor)), AXIS)
