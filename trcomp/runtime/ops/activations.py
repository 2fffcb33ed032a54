"""Activations and their backwards, computed in float32 for half types."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.registry import lowers

_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715
"""Of the tanh form: Hendrycks and Gimpel, Gaussian Error Linear Units."""


@lowers("relu")
def relu(ctx: Any, self: Any) -> Any:
    # max(x, 0) keeps a NaN, as torch does.
    return jnp.maximum(self, 0)


@lowers("threshold")
def threshold(ctx: Any, self: Any, threshold: Any, value: Any) -> Any:
    return jnp.where(self <= cast(threshold, self.dtype), cast(value, ctx.dtype), self)


@lowers("threshold_backward")
def threshold_backward(ctx: Any, grad_output: Any, self: Any, threshold: Any) -> Any:
    grad = cast(grad_output, ctx.dtype)
    return jnp.where(self <= cast(threshold, self.dtype), jnp.zeros((), grad.dtype), grad)


@lowers("gelu")
def gelu(ctx: Any, self: Any, *, approximate: str = "none") -> Any:
    x = cast(self, ctx.opmath)
    if approximate == "tanh":
        return 0.5 * x * (1 + jnp.tanh(_SQRT_2_OVER_PI * (x + _GELU_CUBIC * x * x * x)))
    return 0.5 * x * (1 + lax.erf(x * math.sqrt(0.5)))


@lowers("gelu_backward")
def gelu_backward(ctx: Any, grad_output: Any, self: Any, *, approximate: str = "none") -> Any:
    grad, x = cast(grad_output, ctx.opmath), cast(self, ctx.opmath)
    if approximate == "tanh":
        tanh = jnp.tanh(_SQRT_2_OVER_PI * (x + _GELU_CUBIC * x * x * x))
        inner = _SQRT_2_OVER_PI * (1 + 3 * _GELU_CUBIC * x * x)
        return grad * (0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * inner)
    cdf = 0.5 * (1 + lax.erf(x * math.sqrt(0.5)))
    pdf = jnp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return grad * (cdf + x * pdf)


@lowers("silu")
def silu(ctx: Any, self: Any) -> Any:
    x = cast(self, ctx.opmath)
    return x * jax.nn.sigmoid(x)


@lowers("silu_backward")
def silu_backward(ctx: Any, grad_output: Any, self: Any) -> Any:
    grad, x = cast(grad_output, ctx.opmath), cast(self, ctx.opmath)
    gate = jax.nn.sigmoid(x)
    return grad * gate * (1 + x * (1 - gate))


@lowers("tanh_backward")
def tanh_backward(ctx: Any, grad_output: Any, output: Any) -> Any:
    grad, y = cast(grad_output, ctx.opmath), cast(output, ctx.opmath)
    return grad * jnp.conj(1 - y * y)


@lowers("sigmoid_backward")
def sigmoid_backward(ctx: Any, grad_output: Any, output: Any) -> Any:
    grad, y = cast(grad_output, ctx.opmath), cast(output, ctx.opmath)
    return grad * jnp.conj((1 - y) * y)


@lowers("hardtanh")
def hardtanh(ctx: Any, self: Any, min_val: Any = -1, max_val: Any = 1) -> Any:
    return jnp.minimum(jnp.maximum(self, cast(min_val, ctx.dtype)), cast(max_val, ctx.dtype))


@lowers("hardtanh_backward")
def hardtanh_backward(ctx: Any, grad_output: Any, self: Any, min_val: Any, max_val: Any) -> Any:
    outside = (self <= cast(min_val, self.dtype)) | (self >= cast(max_val, self.dtype))
    return jnp.where(outside, jnp.zeros((), ctx.dtype), cast(grad_output, ctx.dtype))


@lowers("hardswish")
def hardswish(ctx: Any, self: Any) -> Any:
    x = cast(self, ctx.opmath)
    return x * jnp.clip(x + 3, 0, 6) / 6


@lowers("hardswish_backward")
def hardswish_backward(ctx: Any, grad_output: Any, self: Any) -> Any:
    grad, x = cast(grad_output, ctx.opmath), cast(self, ctx.opmath)
    inner = jnp.where(x < 3, grad * (x / 3 + 0.5), grad)
    return jnp.where(x <= -3, 0, inner)


@lowers("hardsigmoid")
def hardsigmoid(ctx: Any, self: Any) -> Any:
    return jnp.clip(cast(self, ctx.opmath) + 3, 0, 6) / 6


@lowers("hardsigmoid_backward")
def hardsigmoid_backward(ctx: Any, grad_output: Any, self: Any) -> Any:
    grad, x = cast(grad_output, ctx.opmath), cast(self, ctx.opmath)
    return jnp.where((x > -3) & (x < 3), grad / 6, 0)


@lowers("leaky_relu")
def leaky_relu(ctx: Any, self: Any, negative_slope: Any = 0.01) -> Any:
    x = cast(self, ctx.opmath)
    return jnp.where(x > 0, x, x * cast(negative_slope, ctx.opmath))


@lowers("leaky_relu_backward")
def leaky_relu_backward(
    ctx: Any, grad_output: Any, self: Any, negative_slope: Any, self_is_result: bool
) -> Any:
    grad, x = cast(grad_output, ctx.opmath), cast(self, ctx.opmath)
    return jnp.where(x > 0, grad, grad * cast(negative_slope, ctx.opmath))


@lowers("elu")
def elu(ctx: Any, self: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    dtype = ctx.opmath
    x, scale = cast(self, dtype), cast(scale, dtype)
    below = jnp.expm1(x * cast(input_scale, dtype)) * cast(alpha, dtype) * scale
    return jnp.where(x > 0, x * scale, below)


@lowers("elu_backward")
def elu_backward(
    ctx: Any,
    grad_output: Any,
    alpha: Any,
    scale: Any,
    input_scale: Any,
    is_result: bool,
    self_or_result: Any,
) -> Any:
    dtype = ctx.opmath
    grad, x = cast(grad_output, dtype), cast(self_or_result, dtype)
    slope, scale, inner = cast(alpha, dtype) * cast(scale, dtype), cast(scale, dtype), input_scale
    inner = cast(inner, dtype)
    below = x + slope if is_result else slope * jnp.exp(x * inner)
    return jnp.where(x <= 0, grad * inner * below, grad * scale)


@lowers("celu")
def celu(ctx: Any, self: Any, alpha: Any = 1.0) -> Any:
    x, alpha = cast(self, ctx.opmath), cast(alpha, ctx.opmath)
    return jnp.where(x > 0, x, alpha * jnp.expm1(x / alpha))


@lowers("softplus")
def softplus(ctx: Any, self: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    x, beta = cast(self, ctx.opmath), cast(beta, ctx.opmath)
    linear = x * beta > cast(threshold, ctx.opmath)
    return jnp.where(linear, x, jnp.log1p(jnp.exp(x * beta)) / beta)


@lowers("softplus_backward")
def softplus_backward(ctx: Any, grad_output: Any, self: Any, beta: Any, threshold: Any) -> Any:
    grad, x = cast(grad_output, ctx.opmath), cast(self, ctx.opmath) * cast(beta, ctx.opmath)
    return jnp.where(x > cast(threshold, ctx.opmath), grad, grad * jax.nn.sigmoid(x))


@lowers("mish")
def mish(ctx: Any, self: Any) -> Any:
    x = cast(self, ctx.opmath)
    return x * jnp.tanh(jax.nn.softplus(x))


@lowers("mish_backward")
def mish_backward(ctx: Any, grad_output: Any, self: Any) -> Any:
    grad, x = cast(grad_output, ctx.opmath), cast(self, ctx.opmath)
    tanh = jnp.tanh(jax.nn.softplus(x))
    return grad * (tanh + x * jax.nn.sigmoid(x) * (1 - tanh * tanh))


@lowers("log_sigmoid_forward")
def log_sigmoid_forward(ctx: Any, self: Any) -> Any:
    output = jax.nn.log_sigmoid(cast(self, ctx.opmath))
    # The buffer is for torch's CPU kernel alone; the backward here reads the input.
    return output, jnp.zeros(ctx.sizes[1], ctx.dtypes[1])


@lowers("log_sigmoid_backward")
def log_sigmoid_backward(ctx: Any, grad_output: Any, self: Any, buffer: Any) -> Any:
    return cast(grad_output, ctx.opmath) * jax.nn.sigmoid(-cast(self, ctx.opmath))


@lowers("_prelu_kernel")
def prelu(ctx: Any, self: Any, weight: Any) -> Any:
    return jnp.where(self > 0, self, weight * self)


@lowers("_prelu_kernel_backward")
def prelu_backward(ctx: Any, grad_output: Any, self: Any, weight: Any) -> Any:
    above = self > 0
    of_weight = jnp.where(above, jnp.zeros((), self.dtype), self * grad_output)
    return jnp.where(above, grad_output, weight * grad_output), of_weight


@lowers("softshrink")
def softshrink(ctx: Any, self: Any, lambd: Any = 0.5) -> Any:
    x, edge = cast(self, ctx.opmath), cast(lambd, ctx.opmath)
    # x * 0 keeps a NaN.
    return jnp.where(x > edge, x - edge, jnp.where(x < -edge, x + edge, x * 0))


@lowers("hardshrink")
def hardshrink(ctx: Any, self: Any, lambd: Any = 0.5) -> Any:
    edge = cast(lambd, self.dtype)
    return jnp.where((self >= -edge) & (self <= edge), jnp.zeros((), self.dtype), self)


def _shrink_backward(grad: Any, self: Any, lambd: Any) -> Any:
    edge = cast(lambd, self.dtype)
    return jnp.where((self >= -edge) & (self <= edge), jnp.zeros((), grad.dtype), grad)


@lowers("softshrink_backward")
def softshrink_backward(ctx: Any, grad_output: Any, self: Any, lambd: Any) -> Any:
    return _shrink_backward(grad_output, self, lambd)


@lowers("hardshrink_backward")
def hardshrink_backward(ctx: Any, grad_out: Any, self: Any, lambd: Any) -> Any:
    return _shrink_backward(grad_out, self, lambd)


@lowers("glu")
def glu(ctx: Any, self: Any, dim: int = -1) -> Any:
    value, gate = jnp.split(cast(self, ctx.opmath), 2, axis=dim)
    return value * jax.nn.sigmoid(gate)


@lowers("glu_backward")
def glu_backward(ctx: Any, grad_output: Any, self: Any, dim: int) -> Any:
    grad = cast(grad_output, ctx.opmath)
    value, gate = jnp.split(cast(self, ctx.opmath), 2, axis=dim)
    gate = jax.nn.sigmoid(gate)
    return jnp.concatenate([grad * gate, grad * value * gate * (1 - gate)], axis=dim)
