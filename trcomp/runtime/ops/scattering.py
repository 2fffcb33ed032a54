"""Gather and scatter along one dimension, and the backwards of views as writes into zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from trcomp.runtime import views
from trcomp.runtime.dtypes import TO_TORCH, cast
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


def _slices(ndim: int, dim: int, part: Any) -> tuple[Any, ...]:
    return (slice(None),) * (dim % ndim) + (part,)


@lowers("select_scatter")
def select_scatter(ctx: Any, self: Any, src: Any, dim: int, index: int) -> Any:
    return self.at[_slices(self.ndim, dim, index)].set(cast(src, self.dtype))


@lowers("slice_scatter")
def slice_scatter(
    ctx: Any,
    self: Any,
    src: Any,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    return self.at[_slices(self.ndim, dim, slice(start, end, step))].set(cast(src, self.dtype))


@lowers("select_backward")
def select_backward(
    ctx: Any, grad_output: Any, input_sizes: tuple[int, ...], dim: int, index: int
) -> Any:
    axis = dim % len(input_sizes)
    before = index % input_sizes[axis]
    grad = jnp.expand_dims(grad_output, axis)
    return _pad_axis(grad, axis, before, input_sizes[axis] - before - 1, 0)


@lowers("slice_backward")
def slice_backward(
    ctx: Any,
    grad_output: Any,
    input_sizes: tuple[int, ...],
    dim: int,
    start: int,
    end: int,
    step: int,
) -> Any:
    axis = dim % len(input_sizes)
    extent, count = input_sizes[axis], grad_output.shape[axis]
    if not count:
        return jnp.zeros(input_sizes, grad_output.dtype)
    first = slice(start, end, step).indices(extent)[0]
    last = first + (count - 1) * step
    return _pad_axis(grad_output, axis, first, extent - last - 1, step - 1)


def _pad_axis(array: Any, axis: int, before: int, after: int, between: int) -> Any:
    config = [(before, after, between) if d == axis else (0, 0, 0) for d in range(array.ndim)]
    return lax.pad(array, jnp.zeros((), array.dtype), config)


def _diagonal_view(size: tuple[int, ...], offset: int, dim1: int, dim2: int) -> views.View:
    meta = torch.empty(size, device="meta").diagonal(offset, dim1, dim2)
    return views.View(tuple(meta.size()), meta.stride(), meta.storage_offset(), meta.dtype)


@lowers("diagonal_scatter")
def diagonal_scatter(
    ctx: Any, self: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Any:
    view = _diagonal_view(self.shape, offset, dim1, dim2)
    return _write_view(self, src, view.size, view.stride, view.offset)


@lowers("diagonal_backward")
def diagonal_backward(
    ctx: Any, grad_output: Any, input_sizes: tuple[int, ...], offset: int, dim1: int, dim2: int
) -> Any:
    zeros = jnp.zeros(input_sizes, grad_output.dtype)
    return diagonal_scatter(ctx, zeros, grad_output, offset, dim1, dim2)


@lowers("as_strided_scatter")
def as_strided_scatter(
    ctx: Any,
    self: Any,
    src: Any,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    storage_offset: int | None = None,
) -> Any:
    return _write_view(self, src, size, stride, storage_offset or 0)


def _write_view(
    self: Any, src: Any, size: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> Any:
    """`self`, which is row-major, with `src` written through strides."""
    view = views.View(size, stride, offset, TO_TORCH[np.dtype(self.dtype)])
    return views.write(self, jnp.broadcast_to(cast(src, self.dtype), size), view)


@lowers("unfold_backward")
def unfold_backward(
    ctx: Any, grad_in: Any, input_sizes: tuple[int, ...], dim: int, size: int, step: int
) -> Any:
    if not input_sizes:
        return grad_in.reshape(())
    axis = dim % len(input_sizes)
    windows = jnp.moveaxis(grad_in, -1, axis + 1)
    count = windows.shape[axis]
    places = np.arange(count)[:, None] * step + np.arange(size)
    flat = windows.reshape(*windows.shape[:axis], count * size, *windows.shape[axis + 2 :])
    zeros = jnp.zeros(input_sizes, grad_in.dtype)
    return zeros.at[_slices(len(input_sizes), axis, places.reshape(-1))].add(flat)
