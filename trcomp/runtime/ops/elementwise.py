"""Pointwise arithmetic of two or three operands: torch's promotion, then an XLA formula."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from trcomp.runtime.dtypes import Scalar, cast
from trcomp.runtime.ops.registry import lowers


def is_integral(dtype: Any) -> bool:
    """Whether a dtype is bool or an integer."""
    return dtype == jnp.bool_ or jnp.issubdtype(dtype, jnp.integer)


def scaled(operand: Any, factor: Any, dtype: Any) -> Any:
    """`operand * factor` in `dtype`, without the multiplication if the factor is a baked 1."""
    operand = cast(operand, dtype)
    if not isinstance(factor, Scalar) and factor == 1:
        return operand
    return operand * cast(factor, dtype)


@lowers("add.Tensor", "add.Scalar")
def add(ctx: Any, self: Any, other: Any, alpha: Any = 1) -> Any:
    if ctx.dtype == jnp.bool_:
        return cast(self, ctx.dtype) | scaled(other, alpha, ctx.dtype)
    return cast(self, ctx.opmath) + scaled(other, alpha, ctx.opmath)


@lowers("sub.Tensor", "sub.Scalar")
def sub(ctx: Any, self: Any, other: Any, alpha: Any = 1) -> Any:
    return cast(self, ctx.opmath) - scaled(other, alpha, ctx.opmath)


@lowers("rsub.Tensor", "rsub.Scalar")
def rsub(ctx: Any, self: Any, other: Any, alpha: Any = 1) -> Any:
    return cast(other, ctx.opmath) - scaled(self, alpha, ctx.opmath)


@lowers("mul.Tensor", "mul.Scalar")
def mul(ctx: Any, self: Any, other: Any) -> Any:
    return cast(self, ctx.opmath) * cast(other, ctx.opmath)


@lowers("div.Tensor", "div.Scalar")
def div(ctx: Any, self: Any, other: Any) -> Any:
    return cast(self, ctx.opmath) / cast(other, ctx.opmath)


@lowers("div.Tensor_mode", "div.Scalar_mode")
def div_mode(ctx: Any, self: Any, other: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return div(ctx, self, other)
    left, right = cast(self, ctx.opmath), cast(other, ctx.opmath)
    if rounding_mode == "floor":
        return floor_quotient(left, right)
    quotient = lax.div(*jnp.broadcast_arrays(left, right))
    return quotient if is_integral(ctx.dtype) else jnp.trunc(quotient)


@lowers("floor_divide", "floor_divide.Scalar")
def floor_divide(ctx: Any, self: Any, other: Any) -> Any:
    return floor_quotient(cast(self, ctx.opmath), cast(other, ctx.opmath))


def floor_quotient(left: Any, right: Any) -> Any:
    """Python's `//`; by zero, floats give what true division gives."""
    left, right = jnp.broadcast_arrays(left, right)
    if is_integral(left.dtype):
        quotient, rest = lax.div(left, right), lax.rem(left, right)
        return jnp.where((rest != 0) & ((rest < 0) != (right < 0)), quotient - 1, quotient)
    # As c10::div_floor_floating: the quotient of the exact remainder, put right to the nearest.
    rest = lax.rem(left, right)
    exact = (left - rest) / right
    exact = jnp.where((rest != 0) & ((right < 0) != (rest < 0)), exact - 1, exact)
    floor = jnp.floor(exact)
    floor = jnp.where(exact - floor > 0.5, floor + 1, floor)
    signed_zero = jnp.copysign(jnp.zeros_like(left), left / right)
    result = jnp.where(exact != 0, floor, signed_zero)
    return jnp.where(right == 0, left / right, result)


@lowers("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(ctx: Any, self: Any, other: Any) -> Any:
    left, right = jnp.broadcast_arrays(cast(self, ctx.opmath), cast(other, ctx.opmath))
    rest = lax.rem(left, right)
    return jnp.where((rest != 0) & ((rest < 0) != (right < 0)), rest + right, rest)


@lowers("fmod.Tensor", "fmod.Scalar")
def fmod(ctx: Any, self: Any, other: Any) -> Any:
    return lax.rem(*jnp.broadcast_arrays(cast(self, ctx.opmath), cast(other, ctx.opmath)))


@lowers("pow.Tensor_Tensor", "pow.Scalar")
def pow_tensor(ctx: Any, self: Any, exponent: Any) -> Any:
    base, power = jnp.broadcast_arrays(cast(self, ctx.opmath), cast(exponent, ctx.opmath))
    if not is_integral(ctx.dtype):
        return lax.pow(base, power)
    unsigned = jnp.issubdtype(ctx.dtype, jnp.unsignedinteger)
    result = integer_power(base, power if unsigned else jnp.maximum(power, 0))
    # A negative power of an integer is 0 except for 1 and -1, as in c10::powi.
    parity = jnp.where(power % 2 == 0, 1, -1).astype(base.dtype)
    negative = jnp.where(base == 1, 1, jnp.where(base == -1, parity, 0)).astype(base.dtype)
    return result if unsigned else jnp.where(power < 0, negative, result)


def integer_power(base: Any, power: Any) -> Any:
    """`base ** power` for a non-negative power, by squaring, with the type's own wrapping."""
    result = jnp.ones_like(base)
    for _ in range(base.dtype.itemsize * 8 if base.dtype.itemsize < 8 else 63):
        result = jnp.where(power & 1 == 1, result * base, result)
        base = base * base
        power = power >> 1
    return result


_SHORT_POWERS = (0.5, -0.5, -1, -2)


@lowers("pow.Tensor_Scalar", static=("exponent",))
def pow_scalar(ctx: Any, self: Any, exponent: Any) -> Any:
    base = cast(self, ctx.opmath)
    if exponent == int_or_none(exponent) and 0 <= exponent <= 16:
        return lax.integer_pow(base, int(exponent))
    if is_integral(ctx.dtype) or exponent not in _SHORT_POWERS:
        return pow_tensor(ctx, base, exponent)
    if abs(exponent) == 0.5:
        return lax.sqrt(base) if exponent > 0 else lax.rsqrt(base)
    return 1 / lax.integer_pow(base, int(-exponent))


def int_or_none(number: Any) -> int | None:
    """The integer that a real number is."""
    if isinstance(number, complex) or number != number or abs(number) == float("inf"):
        return None
    return int(number) if int(number) == number else None


@lowers("addcmul")
def addcmul(ctx: Any, self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Any:
    dtype = ctx.opmath
    return cast(self, dtype) + scaled(tensor1, value, dtype) * cast(tensor2, dtype)


@lowers("addcdiv")
def addcdiv(ctx: Any, self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Any:
    dtype = ctx.opmath
    return cast(self, dtype) + scaled(tensor1, value, dtype) / cast(tensor2, dtype)


@lowers("lerp.Scalar", "lerp.Tensor")
def lerp(ctx: Any, self: Any, end: Any, weight: Any) -> Any:
    dtype = ctx.opmath
    self, end, weight = cast(self, dtype), cast(end, dtype), cast(weight, dtype)
    # The two forms are exact at weight 0 and at weight 1; torch changes over in the middle.
    near = self + weight * (end - self)
    far = end - (end - self) * (1 - weight)
    return jnp.where(jnp.abs(weight) < 0.5, near, far)


@lowers("clamp", "clamp.Tensor")
def clamp(ctx: Any, self: Any, min: Any = None, max: Any = None) -> Any:
    result = cast(self, ctx.dtype)
    if min is not None:
        result = jnp.maximum(result, cast(min, ctx.dtype))
    if max is not None:
        result = jnp.minimum(result, cast(max, ctx.dtype))
    return jnp.broadcast_to(result, ctx.size)


@lowers("clamp_min", "clamp_min.Tensor")
def clamp_min(ctx: Any, self: Any, min: Any) -> Any:
    return jnp.maximum(cast(self, ctx.dtype), cast(min, ctx.dtype))


@lowers("clamp_max", "clamp_max.Tensor")
def clamp_max(ctx: Any, self: Any, max: Any) -> Any:
    return jnp.minimum(cast(self, ctx.dtype), cast(max, ctx.dtype))


@lowers("maximum")
def maximum(ctx: Any, self: Any, other: Any) -> Any:
    return jnp.maximum(cast(self, ctx.dtype), cast(other, ctx.dtype))


@lowers("minimum")
def minimum(ctx: Any, self: Any, other: Any) -> Any:
    return jnp.minimum(cast(self, ctx.dtype), cast(other, ctx.dtype))


@lowers("fmax")
def fmax(ctx: Any, self: Any, other: Any) -> Any:
    return jnp.fmax(cast(self, ctx.dtype), cast(other, ctx.dtype))


@lowers("fmin")
def fmin(ctx: Any, self: Any, other: Any) -> Any:
    return jnp.fmin(cast(self, ctx.dtype), cast(other, ctx.dtype))


@lowers("where.self")
def where(ctx: Any, condition: Any, self: Any, other: Any) -> Any:
    return jnp.where(cast(condition, jnp.bool_), cast(self, ctx.dtype), cast(other, ctx.dtype))


@lowers("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(ctx: Any, self: Any, mask: Any, value: Any) -> Any:
    return jnp.where(cast(mask, jnp.bool_), cast(value, ctx.dtype), self)


@lowers("nan_to_num")
def nan_to_num(ctx: Any, self: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Any:
    if is_integral(self.dtype):
        return self
    if jnp.issubdtype(self.dtype, jnp.complexfloating):
        parts = [nan_to_num(ctx, part, nan, posinf, neginf) for part in (self.real, self.imag)]
        return lax.complex(*parts)
    limits = jnp.finfo(self.dtype)
    highest = limits.max if posinf is None else cast(posinf, self.dtype)
    lowest = limits.min if neginf is None else cast(neginf, self.dtype)
    result = jnp.where(jnp.isnan(self), cast(0.0 if nan is None else nan, self.dtype), self)
    result = jnp.where(self == jnp.inf, highest, result)
    return jnp.where(self == -jnp.inf, lowest, result)


@lowers("copysign.Tensor", "copysign.Scalar")
def copysign(ctx: Any, self: Any, other: Any) -> Any:
    return jnp.copysign(cast(self, ctx.dtype), cast(other, ctx.dtype))


@lowers("atan2")
def atan2(ctx: Any, self: Any, other: Any) -> Any:
    return jnp.arctan2(cast(self, ctx.opmath), cast(other, ctx.opmath))


@lowers("hypot")
def hypot(ctx: Any, self: Any, other: Any) -> Any:
    return jnp.hypot(cast(self, ctx.opmath), cast(other, ctx.opmath))


@lowers("nextafter")
def nextafter(ctx: Any, self: Any, other: Any) -> Any:
    return jnp.nextafter(cast(self, ctx.dtype), cast(other, ctx.dtype))


@lowers("heaviside")
def heaviside(ctx: Any, self: Any, values: Any) -> Any:
    self, values = cast(self, ctx.dtype), cast(values, ctx.dtype)
    return jnp.where(self == 0, values, (self > 0).astype(ctx.dtype))


@lowers("logaddexp")
def logaddexp(ctx: Any, self: Any, other: Any) -> Any:
    return jnp.logaddexp(cast(self, ctx.opmath), cast(other, ctx.opmath))


@lowers("logaddexp2")
def logaddexp2(ctx: Any, self: Any, other: Any) -> Any:
    return jnp.logaddexp2(cast(self, ctx.opmath), cast(other, ctx.opmath))


@lowers("xlogy.Tensor", "xlogy.Scalar_Other", "xlogy.Scalar_Self")
def xlogy(ctx: Any, self: Any, other: Any) -> Any:
    self, other = cast(self, ctx.opmath), cast(other, ctx.opmath)
    product = jnp.where(self == 0, 0, self * jnp.log(other))
    return jnp.where(jnp.isnan(other), other, product)


@lowers("special_xlog1py", "special_xlog1py.other_scalar", "special_xlog1py.self_scalar")
def xlog1py(ctx: Any, self: Any, other: Any) -> Any:
    self, other = cast(self, ctx.opmath), cast(other, ctx.opmath)
    product = jnp.where(self == 0, 0, self * jnp.log1p(other))
    return jnp.where(jnp.isnan(other), other, product)


@lowers("gcd")
def gcd(ctx: Any, self: Any, other: Any) -> Any:
    return jnp.gcd(cast(self, ctx.dtype), cast(other, ctx.dtype))


@lowers("lcm")
def lcm(ctx: Any, self: Any, other: Any) -> Any:
    return jnp.lcm(cast(self, ctx.dtype), cast(other, ctx.dtype))


@lowers("complex")
def complex_(ctx: Any, real: Any, imag: Any) -> Any:
    return lax.complex(*jnp.broadcast_arrays(real, imag))


@lowers("polar")
def polar(ctx: Any, abs: Any, angle: Any) -> Any:
    abs, angle = jnp.broadcast_arrays(abs, angle)
    return lax.complex(abs * jnp.cos(angle), abs * jnp.sin(angle))
