"""Sorting and order statistics: NaN is the largest value, ties keep their order."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from trcomp.runtime.dtypes import cast, promote
from trcomp.runtime.ops.elementwise import is_integral
from trcomp.runtime.ops.registry import lowers

_FLOATS = (jnp.float32, jnp.bfloat16, jnp.float16)
_NAN = np.copysign(np.float32(np.nan), np.float32(1))


def sort_with_indices(self: Any, dim: int, descending: bool) -> tuple[Any, Any]:
    """Values in order and where they came from, stable."""
    if not self.ndim:
        return self, jnp.zeros((), jnp.int64)
    axis = dim % self.ndim
    # Descending is the ascending order of the reversed tensor, reversed: ties keep their order.
    source = jnp.flip(self, axis) if descending else self
    places = lax.broadcasted_iota(jnp.int64, self.shape, axis)
    values, index = lax.sort((source, places), dimension=axis, is_stable=True, num_keys=1)
    if descending:
        values, index = jnp.flip(values, axis), self.shape[axis] - 1 - jnp.flip(index, axis)
    return values, index


@lowers("sort")
def sort(ctx: Any, self: Any, dim: int = -1, descending: bool = False) -> Any:
    return sort_with_indices(self, dim, descending)


@lowers("sort.stable")
def sort_stable(
    ctx: Any, self: Any, *, stable: Any = None, dim: int = -1, descending: bool = False
) -> Any:
    return sort_with_indices(self, dim, descending)


@lowers("topk")
def topk(
    ctx: Any, self: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Any:
    if not self.ndim:
        return self.reshape(ctx.size), jnp.zeros(ctx.size, jnp.int64)
    axis = dim % self.ndim
    if self.dtype not in _FLOATS:
        values, index = sort_with_indices(self, axis, largest)
        return lax.slice_in_dim(values, 0, k, axis=axis), lax.slice_in_dim(index, 0, k, axis=axis)
    # XLA has a fast kernel for float32 alone; it takes a NaN by its sign, as larger or smaller
    # than all.
    rows = jnp.moveaxis(self, axis, -1)
    key = cast(rows, ctx.opmath)
    key = jnp.where(key != key, _NAN if largest else -_NAN, key if largest else -key)
    index = lax.top_k(key, k)[1]
    values = jnp.take_along_axis(rows, index, -1)
    return jnp.moveaxis(values, -1, axis), jnp.moveaxis(index, -1, axis)


def _order_statistic(self: Any, rank: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
    """The element at place `rank` in ascending order, per slice along `dim`."""
    if not self.ndim:
        return self, jnp.zeros((), jnp.int64)
    axis = dim % self.ndim
    values, index = sort_with_indices(self, axis, False)
    place = jnp.broadcast_to(rank, tuple(1 if d == axis else n for d, n in enumerate(self.shape)))
    picked = [jnp.take_along_axis(array, place, axis) for array in (values, index)]
    return tuple(array if keepdim else jnp.squeeze(array, axis) for array in picked)  # type: ignore[return-value]


@lowers("kthvalue")
def kthvalue(ctx: Any, self: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    return _order_statistic(self, k - 1, dim, keepdim)


def _median_rank(self: Any, axis: int, *, ignore_nan: bool) -> Any:
    extent = self.shape[axis]
    if is_integral(self.dtype):
        return (extent - 1) // 2
    nans = jnp.sum(jnp.isnan(self), axis=axis, keepdims=True)
    if ignore_nan:
        return jnp.maximum((extent - nans - 1) // 2, 0)
    # NaNs sort last: with one present, the first of them is the median.
    return jnp.where(nans > 0, extent - nans, (extent - 1) // 2)


def _median(self: Any, dim: int, keepdim: bool, *, ignore_nan: bool) -> tuple[Any, Any]:
    rank = _median_rank(self, dim % self.ndim, ignore_nan=ignore_nan) if self.ndim else 0
    return _order_statistic(self, rank, dim, keepdim)


@lowers("mode")
def mode(ctx: Any, self: Any, dim: int = -1, keepdim: bool = False) -> Any:
    if not self.ndim:
        return self, jnp.zeros((), jnp.int64)
    axis = dim % self.ndim
    values, index = sort_with_indices(self, axis, False)
    places = lax.broadcasted_iota(jnp.int64, values.shape, axis)
    changes = (places == 0) | (values != jnp.roll(values, 1, axis))
    starts = lax.cummax(jnp.where(changes, places, 0), axis)
    # The end of the first longest run: the smallest of the most frequent values.
    longest = jnp.argmax(places - starts, axis=axis, keepdims=True)
    picked = [jnp.take_along_axis(array, longest, axis) for array in (values, index)]
    return tuple(array if keepdim else jnp.squeeze(array, axis) for array in picked)


@lowers("median.dim")
def median_dim(ctx: Any, self: Any, dim: int, keepdim: bool = False) -> Any:
    return _median(self, dim, keepdim, ignore_nan=False)


@lowers("nanmedian.dim")
def nanmedian_dim(ctx: Any, self: Any, dim: int, keepdim: bool = False) -> Any:
    return _median(self, dim, keepdim, ignore_nan=True)


@lowers("median")
def median(ctx: Any, self: Any) -> Any:
    return _median_of_all(self, ignore_nan=False)


@lowers("nanmedian")
def nanmedian(ctx: Any, self: Any) -> Any:
    return _median_of_all(self, ignore_nan=True)


def _median_of_all(self: Any, *, ignore_nan: bool) -> Any:
    if not self.size:
        nothing = jnp.iinfo(self.dtype).min if is_integral(self.dtype) else jnp.nan
        return jnp.full((), nothing, self.dtype)
    return _median(self.reshape(-1), 0, False, ignore_nan=ignore_nan)[0]


def _search(ctx: Any, sequence: Any, values: Any, right: bool, sorter: Any) -> Any:
    dtype = promote(sequence, values)
    sequence = cast(sequence, dtype)
    values = jnp.broadcast_to(cast(values, dtype), ctx.size)
    if sorter is not None:
        sequence = jnp.take_along_axis(sequence, sorter, -1)
    side = "right" if right else "left"
    if not values.size:
        return jnp.zeros(ctx.size, ctx.dtype)
    if sequence.ndim <= 1:
        return jnp.searchsorted(sequence, values, side=side)
    rows = sequence.reshape(-1, sequence.shape[-1])
    found = jax.vmap(lambda row, wanted: jnp.searchsorted(row, wanted, side=side))(
        rows, values.reshape(rows.shape[0], -1)
    )
    return found.reshape(ctx.size)


@lowers("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    ctx: Any,
    sorted_sequence: Any,
    self: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    return _search(ctx, sorted_sequence, self, right or side == "right", sorter)


@lowers("bucketize.Tensor", "bucketize.Scalar")
def bucketize(
    ctx: Any, self: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False
) -> Any:
    return _search(ctx, boundaries, self, right, None)


@lowers("histc")
def histc(ctx: Any, self: Any, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    dtype = jnp.promote_types(ctx.opmath, jnp.float32)
    values = cast(self, dtype).reshape(-1)
    low, high = cast(min, dtype), cast(max, dtype)
    if values.size:
        # Equal ends mean those of the data.
        given = low != high
        low = jnp.where(given, low, jnp.min(values))
        high = jnp.where(given, high, jnp.max(values))
    flat = low == high
    low, high = jnp.where(flat, low - 1, low), jnp.where(flat, high + 1, high)
    place = jnp.floor((values - low) / (high - low) * bins).astype(jnp.int32)
    place = jnp.where(values == high, bins - 1, place)
    inside = (values >= low) & (values <= high)
    return jnp.zeros(bins, dtype).at[jnp.clip(place, 0, bins - 1)].add(inside.astype(dtype))
