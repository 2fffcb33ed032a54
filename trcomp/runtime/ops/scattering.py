"""Gather, scatter and writes of whole slices, along one dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.registry import lowers


def _with_dims(array: Any) -> Any:
    """A 0-dim array as one of one element."""
    return array if array.ndim else array.reshape(1)


def places_along(self: Any, dim: int, index: Any) -> tuple[Any, ...]:
    """The subscript of the elements that `index` picks along `dim`, others at their own place."""
    axis = dim % self.ndim
    return tuple(
        index if d == axis else lax.broadcasted_iota(index.dtype, index.shape, d)
        for d in range(self.ndim)
    )


def rows_at(self: Any, dim: int, index: Any) -> tuple[Any, ...]:
    """The subscript of whole slices along `dim`."""
    return (slice(None),) * (dim % self.ndim) + (_with_dims(index),)


@lowers("gather")
def gather(ctx: Any, self: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    source, index = _with_dims(self), _with_dims(index)
    if not index.size:
        return jnp.zeros(ctx.size, ctx.dtype)
    return source.at[places_along(source, dim, index)].get(mode="clip").reshape(ctx.size)


def _source(src: Any, index: Any, dtype: Any) -> Any:
    """The part of `src` that lies over `index`; a number everywhere."""
    value = cast(src, dtype)
    if not value.ndim:
        return jnp.broadcast_to(value, index.shape)
    return lax.slice(value, (0,) * value.ndim, index.shape)


_REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda places, values: places.add(values),
    "sum": lambda places, values: places.add(values),
    "mean": lambda places, values: places.add(values),
    "multiply": lambda places, values: places.multiply(values),
    "prod": lambda places, values: places.multiply(values),
    "amax": lambda places, values: places.max(values),
    "amin": lambda places, values: places.min(values),
    "set": lambda places, values: places.set(values),
}


def _neutral(reduce: str, dtype: Any) -> Any:
    """What leaves the other operand of a reduction as it is."""
    if reduce in ("prod", "multiply"):
        return 1
    if reduce not in ("amax", "amin"):
        return 0
    if jnp.issubdtype(dtype, jnp.floating):
        return -np.inf if reduce == "amax" else np.inf
    limits = jnp.iinfo(dtype)
    return limits.min if reduce == "amax" else limits.max


def _reduce_into(
    ctx: Any, self: Any, places: Any, values: Any, reduce: str, include_self: bool = True
) -> Any:
    """`self` with values combined into the places that a subscript names."""
    dtype = jnp.promote_types(ctx.opmath, jnp.int32) if self.dtype == jnp.bool_ else ctx.opmath
    result, values = cast(self, dtype), cast(values, dtype)
    if not include_self:
        result = result.at[places].set(jnp.asarray(_neutral(reduce, dtype), dtype))
    result = _REDUCTIONS[reduce](result.at[places], values)
    if reduce == "mean":
        counts = jnp.full(self.shape, 1 if include_self else 0, dtype).at[places].add(1)
        counts = jnp.maximum(counts, 1)
        if jnp.issubdtype(dtype, jnp.integer):
            return result // counts
        return result / counts
    return result


def _scatter(
    ctx: Any, self: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True
) -> Any:
    target, index = _with_dims(self), _with_dims(index)
    if not index.size:
        return self
    source = src if not hasattr(src, "ndim") else _with_dims(src)
    values = _source(source, index, target.dtype)
    places = places_along(target, dim, index)
    if reduce == "set":
        return target.at[places].set(values).reshape(self.shape)
    return _reduce_into(ctx, target, places, values, reduce, include_self).reshape(self.shape)


@lowers("scatter.src")
def scatter_src(ctx: Any, self: Any, dim: int, index: Any, src: Any) -> Any:
    return _scatter(ctx, self, dim, index, src, "set")


@lowers("scatter.value")
def scatter_value(ctx: Any, self: Any, dim: int, index: Any, value: Any) -> Any:
    return _scatter(ctx, self, dim, index, value, "set")


@lowers("scatter.reduce")
def scatter_reduce_src(ctx: Any, self: Any, dim: int, index: Any, src: Any, *, reduce: str) -> Any:
    return _scatter(ctx, self, dim, index, src, reduce)


@lowers("scatter.value_reduce")
def scatter_reduce_value(
    ctx: Any, self: Any, dim: int, index: Any, value: Any, *, reduce: str
) -> Any:
    return _scatter(ctx, self, dim, index, value, reduce)


@lowers("scatter_add")
def scatter_add(ctx: Any, self: Any, dim: int, index: Any, src: Any) -> Any:
    return _scatter(ctx, self, dim, index, src, "add")


@lowers("scatter_reduce.two")
def scatter_reduce(
    ctx: Any, self: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True
) -> Any:
    return _scatter(ctx, self, dim, index, src, reduce, include_self)


@lowers("index_select")
def index_select(ctx: Any, self: Any, dim: int, index: Any) -> Any:
    source = _with_dims(self)
    return source.at[rows_at(source, dim, index)].get(mode="clip").reshape(ctx.size)


@lowers("index_add")
def index_add(ctx: Any, self: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    target = _with_dims(self)
    values = cast(_with_dims(source), ctx.opmath)
    if not isinstance(alpha, int) or alpha != 1:
        values = values * cast(alpha, ctx.opmath)
    places = rows_at(target, dim, index)
    return _reduce_into(ctx, target, places, values, "add").reshape(self.shape)


@lowers("index_copy")
def index_copy(ctx: Any, self: Any, dim: int, index: Any, source: Any) -> Any:
    target = _with_dims(self)
    values = source if source.ndim else source.reshape((1,) * target.ndim)
    return target.at[rows_at(target, dim, index)].set(values).reshape(self.shape)


@lowers("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(ctx: Any, self: Any, dim: int, index: Any, value: Any) -> Any:
    target = _with_dims(self)
    filled = target.at[rows_at(target, dim, index)].set(cast(value, target.dtype))
    return filled.reshape(self.shape)


@lowers("index_reduce")
def index_reduce(
    ctx: Any,
    self: Any,
    dim: int,
    index: Any,
    source: Any,
    reduce: str,
    *,
    include_self: bool = True,
) -> Any:
    target = _with_dims(self)
    places = rows_at(target, dim, index)
    values = _with_dims(source)
    return _reduce_into(ctx, target, places, values, reduce, include_self).reshape(self.shape)
