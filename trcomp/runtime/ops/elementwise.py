"""Pointwise operators: torch's promotion, then one XLA instruction or a short formula."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from trcomp.runtime.dtypes import cast, promote
from trcomp.runtime.ops.registry import lowers


@lowers("add.Tensor", "add.Scalar")
def add(ctx: Any, self: Any, other: Any, alpha: Any = 1) -> Any:
    self, other = cast(self, ctx.dtype), cast(other, ctx.dtype)
    return self + (other if type(alpha) is int and alpha == 1 else other * cast(alpha, ctx.dtype))


@lowers("mul.Tensor", "mul.Scalar")
def mul(ctx: Any, self: Any, other: Any) -> Any:
    return cast(self, ctx.dtype) * cast(other, ctx.dtype)


@lowers("lt.Tensor", "lt.Scalar")
def lt(ctx: Any, self: Any, other: Any) -> Any:
    dtype = promote(self, other)
    return cast(self, dtype) < cast(other, dtype)


@lowers("sum", "sum.dim_IntList")
def sum(ctx: Any, self: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return jnp.sum(cast(self, ctx.dtype), axis=dim or None, keepdims=keepdim)


@lowers("mm")
def mm(ctx: Any, self: Any, mat2: Any) -> Any:
    return lax.dot(self, mat2)
