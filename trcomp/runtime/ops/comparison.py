"""Comparisons, logic, bits and predicates: operands meet in their common dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from trcomp.runtime.dispatch import implements
from trcomp.runtime.dtypes import cast, promote
from trcomp.runtime.ops.elementwise import is_integral
from trcomp.runtime.ops.registry import find, lowers

Function = Callable[[Any, Any], Any]


def _compare(name: str, function: Function) -> None:
    @lowers(f"{name}.Tensor", f"{name}.Scalar")
    def rule(ctx: Any, self: Any, other: Any) -> Any:
        dtype = promote(self, other)
        return function(cast(self, dtype), cast(other, dtype))


for _name, _function in {
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
}.items():
    _compare(_name, _function)


def _bitwise(name: str, function: Function) -> None:
    @lowers(f"bitwise_{name}.Tensor", f"bitwise_{name}.Scalar", f"bitwise_{name}.Scalar_Tensor")
    def rule(ctx: Any, self: Any, other: Any) -> Any:
        return function(cast(self, ctx.dtype), cast(other, ctx.dtype))


_bitwise("and", jnp.bitwise_and)
_bitwise("or", jnp.bitwise_or)
_bitwise("xor", jnp.bitwise_xor)


@lowers("bitwise_not")
def bitwise_not(ctx: Any, self: Any) -> Any:
    return ~self


def _is_shift_in_range(amount: Any) -> Any:
    return (amount >= 0) & (amount < amount.dtype.itemsize * 8)


@lowers(
    "bitwise_left_shift.Tensor",
    "bitwise_left_shift.Tensor_Scalar",
    "bitwise_left_shift.Scalar_Tensor",
    "__lshift__.Tensor",
    "__lshift__.Scalar",
)
def left_shift(ctx: Any, self: Any, other: Any) -> Any:
    value, amount = jnp.broadcast_arrays(cast(self, ctx.dtype), cast(other, ctx.dtype))
    if not is_integral(ctx.dtype):
        return value * jnp.exp2(amount)
    return jnp.where(_is_shift_in_range(amount), lax.shift_left(value, amount), 0)


@lowers(
    "bitwise_right_shift.Tensor",
    "bitwise_right_shift.Tensor_Scalar",
    "bitwise_right_shift.Scalar_Tensor",
    "__rshift__.Tensor",
    "__rshift__.Scalar",
)
def right_shift(ctx: Any, self: Any, other: Any) -> Any:
    value, amount = jnp.broadcast_arrays(cast(self, ctx.dtype), cast(other, ctx.dtype))
    if not is_integral(ctx.dtype):
        return value / jnp.exp2(amount)
    unsigned = jnp.issubdtype(ctx.dtype, jnp.unsignedinteger)
    shift = lax.shift_right_logical if unsigned else lax.shift_right_arithmetic
    emptied = jnp.where(value < 0, jnp.asarray(-1 if not unsigned else 0, value.dtype), 0)
    return jnp.where(_is_shift_in_range(amount), shift(value, amount), emptied)


def _logical(name: str, function: Function) -> None:
    @lowers(f"logical_{name}")
    def rule(ctx: Any, self: Any, other: Any) -> Any:
        return function(cast(self, jnp.bool_), cast(other, jnp.bool_))


_logical("and", jnp.logical_and)
_logical("or", jnp.logical_or)
_logical("xor", jnp.logical_xor)


@lowers("logical_not")
def logical_not(ctx: Any, self: Any) -> Any:
    return ~cast(self, jnp.bool_)


def _nowhere(self: Any) -> Any:
    return jnp.zeros(self.shape, jnp.bool_)


@lowers("isnan")
def isnan(ctx: Any, self: Any) -> Any:
    return self != self


@lowers("isinf")
def isinf(ctx: Any, self: Any) -> Any:
    return _nowhere(self) if is_integral(self.dtype) else jnp.isinf(self)


@lowers("isposinf")
def isposinf(ctx: Any, self: Any) -> Any:
    return _nowhere(self) if is_integral(self.dtype) else self == jnp.inf


@lowers("isneginf")
def isneginf(ctx: Any, self: Any) -> Any:
    return _nowhere(self) if is_integral(self.dtype) else self == -jnp.inf


@lowers("signbit")
def signbit(ctx: Any, self: Any) -> Any:
    if self.dtype == jnp.bool_:
        return _nowhere(self)
    return self < 0 if is_integral(self.dtype) else jnp.signbit(self)


@lowers("isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor")
def isin(
    ctx: Any, elements: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False
) -> Any:
    dtype = promote(elements, test_elements)
    tests = cast(test_elements, dtype).reshape(-1)
    found = (cast(elements, dtype)[..., None] == tests).any(-1)
    return ~found if invert else found


@implements("equal")
def equal(self: Any, other: Any) -> bool:
    """Whether two tensors have the same size and elements; reads the answer."""
    if self.size() != other.size():
        return False
    return bool(find("all")(find("eq.Tensor")(self, other)).item())
