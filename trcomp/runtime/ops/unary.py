"""Pointwise functions of one operand: exponentials, trigonometry, rounding, special functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.elementwise import is_integral
from trcomp.runtime.ops.registry import exists, lowers

Function = Callable[[Any], Any]


def _round(x: Any) -> Any:
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


def _unary(name: str, function: Function, *, keep_integers: bool = False) -> None:
    """Register a function of one operand, computed in float for integers unless they are kept."""
    if not exists(name):
        return

    @lowers(name)
    def rule(ctx: Any, self: Any) -> Any:
        if keep_integers and is_integral(self.dtype):
            return self
        return function(cast(self, ctx.opmath))


FUNCTIONS: dict[str, Function] = {
    "acos": jnp.arccos,
    "acosh": jnp.arccosh,
    "asin": jnp.arcsin,
    "asinh": jnp.arcsinh,
    "atan": jnp.arctan,
    "atanh": jnp.arctanh,
    "cos": jnp.cos,
    "cosh": jnp.cosh,
    "digamma": lambda x: jnp.where(
        x == 0, jnp.copysign(jnp.inf, -x).astype(x.dtype), lax.digamma(x)
    ),
    "erf": lax.erf,
    "erfc": lax.erfc,
    "erfinv": lax.erf_inv,
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "lgamma": lax.lgamma,
    "log": jnp.log,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "log2": jnp.log2,
    "neg": jnp.negative,
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lax.rsqrt,
    "sigmoid": jax.nn.sigmoid,
    "sin": jnp.sin,
    "sinc": jnp.sinc,
    "sinh": jnp.sinh,
    "special_i0e": jax.scipy.special.i0e,
    "special_i1": jax.scipy.special.i1,
    "special_i1e": jax.scipy.special.i1e,
    "special_modified_bessel_i0": jax.scipy.special.i0,
    "special_modified_bessel_i1": jax.scipy.special.i1,
    "special_ndtri": jax.scipy.special.ndtri,
    "special_entr": jax.scipy.special.entr,
    "i0": jax.scipy.special.i0,
    "sqrt": jnp.sqrt,
    "tan": jnp.tan,
    "tanh": jnp.tanh,
}
ROUNDINGS: dict[str, Function] = {
    "ceil": jnp.ceil,
    "floor": jnp.floor,
    "round": _round,
    "trunc": jnp.trunc,
}

for _name, _function in FUNCTIONS.items():
    _unary(_name, _function)
for _name, _function in ROUNDINGS.items():
    _unary(_name, _function, keep_integers=True)


@lowers("frac")
def frac(ctx: Any, self: Any) -> Any:
    return self - jnp.trunc(self)


@lowers("round.decimals")
def round_decimals(ctx: Any, self: Any, *, decimals: int = 0) -> Any:
    if is_integral(self.dtype):
        return self
    scale = 10.0 ** abs(decimals)
    if decimals < 0:
        return _round(self / scale) * scale
    return _round(self * scale) / scale


@lowers("abs")
def absolute(ctx: Any, self: Any) -> Any:
    return self if self.dtype == jnp.bool_ else jnp.abs(self)


@lowers("sign", "sgn")
def sign(ctx: Any, self: Any) -> Any:
    if self.dtype == jnp.bool_:
        return self
    if jnp.issubdtype(self.dtype, jnp.floating):
        # jnp.sign keeps NaN and -0; torch gives 0 for both.
        return (self > 0).astype(self.dtype) - (self < 0).astype(self.dtype)
    return jnp.sign(self)


@lowers("angle")
def angle(ctx: Any, self: Any) -> Any:
    if jnp.issubdtype(self.dtype, jnp.complexfloating):
        return jnp.angle(self)
    flat = jnp.where(self < 0, math.pi, 0.0).astype(ctx.dtype)
    return flat if is_integral(self.dtype) else jnp.where(jnp.isnan(self), self, flat)


@lowers("_conj_physical")
def conj_physical(ctx: Any, self: Any) -> Any:
    return jnp.conj(self)


@lowers("logit", static=("eps",))
def logit(ctx: Any, self: Any, eps: float | None = None) -> Any:
    x = cast(self, ctx.opmath)
    x = x if eps is None else jnp.clip(x, eps, 1 - eps)
    return jnp.log(x / (1 - x))


@lowers("logit_backward", static=("eps",))
def logit_backward(ctx: Any, grad_output: Any, self: Any, eps: float | None = None) -> Any:
    grad, x = cast(grad_output, ctx.opmath), cast(self, ctx.opmath)
    low, high = (0.0, 1.0) if eps is None else (eps, 1.0 - eps)
    inside = (x >= low) & (x <= high)
    return jnp.where(inside, grad / (x * (1 - x)), jnp.nan if eps is None else 0)


@lowers("mvlgamma")
def mvlgamma(ctx: Any, self: Any, p: int) -> Any:
    x = cast(self, ctx.opmath)
    terms = [lax.lgamma(x - j / 2) for j in range(p)]
    return p * (p - 1) / 4 * math.log(math.pi) + sum(terms)
