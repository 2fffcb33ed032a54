"""Reductions and scans over dimensions; half types accumulate in float32 as torch does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.registry import lowers


def axes_of(self: Any, dim: Any) -> tuple[int, ...]:
    """The axes that torch's `dim` names: none given means all; a 0-dim tensor has none."""
    if not self.ndim:
        return ()
    if dim is None or dim == ():
        return tuple(range(self.ndim))
    return tuple(d % self.ndim for d in ((dim,) if isinstance(dim, int) else dim))


def count_of(self: Any, axes: tuple[int, ...]) -> int:
    """How many elements are reduced to one."""
    return math.prod(self.shape[axis] for axis in axes)


@lowers("sum", "sum.dim_IntList")
def sum(ctx: Any, self: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return jnp.sum(cast(self, ctx.opmath), axis=axes_of(self, dim), keepdims=keepdim)


@lowers("nansum")
def nansum(
    ctx: Any, self: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    return jnp.nansum(cast(self, ctx.opmath), axis=axes_of(self, dim), keepdims=keepdim)


@lowers("mean", "mean.dim")
def mean(ctx: Any, self: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    axes = axes_of(self, dim)
    total = jnp.sum(cast(self, ctx.opmath), axis=axes, keepdims=keepdim)
    return total / count_of(self, axes)


@lowers("prod", "prod.dim_int")
def prod(ctx: Any, self: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return jnp.prod(cast(self, ctx.opmath), axis=axes_of(self, dim), keepdims=keepdim)


@lowers("amax")
def amax(ctx: Any, self: Any, dim: Any = (), keepdim: bool = False) -> Any:
    return jnp.max(self, axis=axes_of(self, dim), keepdims=keepdim)


@lowers("amin")
def amin(ctx: Any, self: Any, dim: Any = (), keepdim: bool = False) -> Any:
    return jnp.min(self, axis=axes_of(self, dim), keepdims=keepdim)


@lowers("aminmax")
def aminmax(ctx: Any, self: Any, *, dim: int | None = None, keepdim: bool = False) -> Any:
    return amin(ctx, self, dim, keepdim), amax(ctx, self, dim, keepdim)


@lowers("max")
def max_all(ctx: Any, self: Any) -> Any:
    return jnp.max(self)


@lowers("min")
def min_all(ctx: Any, self: Any) -> Any:
    return jnp.min(self)


def _with_place(self: Any, best: Callable[..., Any], dim: int | None, keepdim: bool) -> Any:
    """The extremum along a dimension, and the first place where it, or a NaN, is.

    In two passes, which XLA:CPU runs in half the time of its own argmax.
    """
    if not self.ndim:
        return self, jnp.zeros((), jnp.int64)
    values = self.reshape(-1) if dim is None else self
    axis = 0 if dim is None else dim % self.ndim
    extremum = best(values, axis=axis, keepdims=True)
    place = lax.broadcasted_iota(jnp.int32, values.shape, axis)
    found = (values == extremum) | (values != values)
    index = jnp.min(jnp.where(found, place, values.shape[axis]), axis=axis, keepdims=True)
    if dim is None:
        shape = (1,) * self.ndim if keepdim else ()
        return extremum.reshape(shape), index.reshape(shape)
    return (extremum, index) if keepdim else (extremum.squeeze(axis), index.squeeze(axis))


@lowers("argmax")
def argmax(ctx: Any, self: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    return _with_place(self, jnp.max, dim, keepdim)[1]


@lowers("argmin")
def argmin(ctx: Any, self: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    return _with_place(self, jnp.min, dim, keepdim)[1]


@lowers("max.dim")
def max_dim(ctx: Any, self: Any, dim: int, keepdim: bool = False) -> Any:
    return _with_place(self, jnp.max, dim, keepdim)


@lowers("min.dim")
def min_dim(ctx: Any, self: Any, dim: int, keepdim: bool = False) -> Any:
    return _with_place(self, jnp.min, dim, keepdim)


@lowers("any", "any.dim", "any.dims")
def any_(ctx: Any, self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return jnp.any(cast(self, jnp.bool_), axis=axes_of(self, dim), keepdims=keepdim)


@lowers("all", "all.dim", "all.dims")
def all_(ctx: Any, self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return jnp.all(cast(self, jnp.bool_), axis=axes_of(self, dim), keepdims=keepdim)


@lowers("count_nonzero", "count_nonzero.dim_IntList")
def count_nonzero(ctx: Any, self: Any, dim: Any = None) -> Any:
    return jnp.count_nonzero(self, axis=axes_of(self, dim)).astype(ctx.dtype)


@lowers("trace")
def trace(ctx: Any, self: Any) -> Any:
    return jnp.sum(jnp.diagonal(cast(self, ctx.opmath)))


def moments(
    ctx: Any, self: Any, dim: Any, correction: float | None, keepdim: bool
) -> tuple[Any, Any]:
    """Variance and mean, by the mean first: one pass loses digits that torch keeps."""
    axes = axes_of(self, dim)
    value = cast(self, jnp.promote_types(ctx.opmath, self.dtype))
    count = count_of(self, axes)
    average = jnp.sum(value, axis=axes, keepdims=True) / count
    spread = jnp.sum(jnp.square(jnp.abs(value - average)), axis=axes, keepdims=keepdim)
    divisor = max(0, count - (1 if correction is None else correction))
    average = average if keepdim else average.reshape(spread.shape)
    return spread / divisor, average


@lowers("var.correction", static=("correction",))
def var(
    ctx: Any, self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    return moments(ctx, self, dim, correction, keepdim)[0]


@lowers("std.correction", static=("correction",))
def std(
    ctx: Any, self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    return jnp.sqrt(moments(ctx, self, dim, correction, keepdim)[0])


@lowers("var_mean.correction", static=("correction",))
def var_mean(
    ctx: Any, self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    return moments(ctx, self, dim, correction, keepdim)


@lowers("std_mean.correction", static=("correction",))
def std_mean(
    ctx: Any, self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    variance, average = moments(ctx, self, dim, correction, keepdim)
    return jnp.sqrt(variance), average


def vector_norm(value: Any, order: float, axes: tuple[int, ...], keepdim: bool) -> Any:
    """The p-norm over axes; `order` may be 0, infinite or negative."""
    size = jnp.abs(value)
    if order == 2 and not jnp.issubdtype(value.dtype, jnp.complexfloating):
        return jnp.sqrt(jnp.sum(value * value, axis=axes, keepdims=keepdim))
    if order == 0:
        return jnp.sum((size != 0).astype(size.dtype), axis=axes, keepdims=keepdim)
    if order == 1:
        return jnp.sum(size, axis=axes, keepdims=keepdim)
    if order == math.inf:
        return jnp.max(size, axis=axes, keepdims=keepdim, initial=0)
    if order == -math.inf:
        return jnp.min(size, axis=axes, keepdims=keepdim)
    total = jnp.sum(size**order, axis=axes, keepdims=keepdim)
    return total ** (1 / order)


@lowers("linalg_vector_norm", static=("ord",))
def linalg_vector_norm(
    ctx: Any, self: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    kind = jnp.promote_types(ctx.opmath, self.dtype)
    return vector_norm(cast(self, kind), ord, axes_of(self, dim), keepdim)


@lowers(
    "norm.Scalar",
    "norm.ScalarOpt_dim",
    "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim_dtype",
    static=("p",),
)
def norm(
    ctx: Any, self: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    return linalg_vector_norm(ctx, self, 2 if p is None else p, dim, keepdim)


@lowers("logsumexp")
def logsumexp(ctx: Any, self: Any, dim: Any, keepdim: bool = False) -> Any:
    axes = axes_of(self, dim)
    return jax.nn.logsumexp(cast(self, ctx.opmath), axis=axes, keepdims=keepdim)


@lowers("cumsum")
def cumsum(ctx: Any, self: Any, dim: int, *, dtype: Any = None) -> Any:
    value = cast(self, ctx.opmath)
    return jnp.cumsum(value, axis=dim) if value.ndim else value


@lowers("cumprod")
def cumprod(ctx: Any, self: Any, dim: int, *, dtype: Any = None) -> Any:
    value = cast(self, ctx.opmath)
    return jnp.cumprod(value, axis=dim) if value.ndim else value


@lowers("logcumsumexp")
def logcumsumexp(ctx: Any, self: Any, dim: int) -> Any:
    value = cast(self, ctx.opmath)
    return lax.cumlogsumexp(value, axis=dim % value.ndim) if value.ndim else value


def _cumulative(self: Any, dim: int, scan: Callable[..., Any]) -> tuple[Any, Any]:
    """Running extremum and where it is; a later element wins a tie, and a NaN wins for good."""
    if not self.ndim:
        return self, jnp.zeros((), jnp.int64)
    axis = dim % self.ndim
    values = cast(self, jnp.uint8) if self.dtype == jnp.bool_ else self
    extremum = scan(values, axis=axis)
    here = (values == extremum) | (values != values)
    place = lax.broadcasted_iota(jnp.int64, self.shape, axis)
    return extremum, lax.cummax(jnp.where(here, place, 0), axis=axis)


@lowers("cummax")
def cummax(ctx: Any, self: Any, dim: int) -> Any:
    return _cumulative(self, dim, lax.cummax)


@lowers("cummin")
def cummin(ctx: Any, self: Any, dim: int) -> Any:
    return _cumulative(self, dim, lax.cummin)
