"""Softmax and the losses, forward and backward."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.registry import find, lowers
from trcomp.runtime.whole import composed, is_real, keep_whole

_NONE, _MEAN, _SUM = 0, 1, 2
"""aten's reduction codes."""


def _wide(array: Any) -> Any:
    return cast(array, jnp.promote_types(array.dtype, np.float32))


@lowers("_softmax", "_safe_softmax")
def _softmax(
    ctx: Any, self: Any, dim: int, half_to_float: Any = False, *, dtype: Any = None
) -> Any:
    if not self.ndim:
        return jnp.ones((), ctx.dtype)
    if isinstance(half_to_float, bool):
        return jax.nn.softmax(_wide(self), dim)
    wide = _wide(self if half_to_float is None else cast(self, ctx.dtype))
    dead = jnp.all(jnp.isneginf(wide), dim, keepdims=True)
    return jnp.where(dead, 0, jax.nn.softmax(jnp.where(dead, 0, wide), dim))


@lowers("_log_softmax")
def _log_softmax(ctx: Any, self: Any, dim: int, half_to_float: bool) -> Any:
    if not self.ndim:
        return jnp.zeros((), ctx.dtype)
    return jax.nn.log_softmax(_wide(self), dim)


@lowers("_softmax_backward_data")
def _softmax_backward_data(
    ctx: Any, grad_output: Any, output: Any, dim: int, input_dtype: Any
) -> Any:
    if not output.ndim:
        return jnp.zeros((), ctx.dtype)
    grad, made = _wide(grad_output), _wide(output)
    return made * (grad - jnp.sum(grad * made, dim, keepdims=True))


@lowers("_log_softmax_backward_data")
def _log_softmax_backward_data(
    ctx: Any, grad_output: Any, output: Any, dim: int, input_dtype: Any
) -> Any:
    if not output.ndim:
        return jnp.zeros((), ctx.dtype)
    grad = _wide(grad_output)
    return grad - jnp.exp(_wide(output)) * jnp.sum(grad, dim, keepdims=True)


def _class_axis(self: Any) -> int:
    """Classes are dimension 1 of a batch, dimension 0 of a single sample."""
    return 1 if self.ndim > 1 else 0


def _weights(self: Any, target: Any, weight: Any, ignore_index: int) -> tuple[Any, Any]:
    """Which class each position names (0 where ignored), and its weight (0 where ignored)."""
    counted = target != ignore_index
    named = jnp.where(counted, target, 0)
    each = jnp.ones(target.shape, self.dtype) if weight is None else weight[named]
    return named, jnp.where(counted, cast(each, self.dtype), 0)


@lowers("nll_loss_forward", "nll_loss2d_forward", static=("ignore_index",))
def nll_loss_forward(
    ctx: Any, self: Any, target: Any, weight: Any, reduction: int, ignore_index: int
) -> Any:
    wide = _wide(self)
    axis = _class_axis(self)
    target = target.reshape(self.shape[:axis] + self.shape[axis + 1 :])
    named, each = _weights(wide, target, weight, ignore_index)
    picked = jnp.take_along_axis(wide, jnp.expand_dims(named, axis), axis).squeeze(axis)
    # An ignored position counts nothing, whatever stands in its row: 0 * inf would be NaN.
    loss = jnp.where(each != 0, -picked * each, 0)
    total = jnp.sum(each)
    if reduction == _NONE:
        return loss.reshape(ctx.size), jnp.zeros((), wide.dtype) if self.ndim > 1 else total
    if reduction == _MEAN:
        return jnp.sum(loss) / total, total
    return jnp.sum(loss), total


@lowers("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(
    ctx: Any,
    grad_output: Any,
    self: Any,
    target: Any,
    weight: Any,
    reduction: int,
    ignore_index: int,
    total_weight: Any,
) -> Any:
    wide = jnp.promote_types(self.dtype, np.float32)
    axis = _class_axis(self)
    target = target.reshape(self.shape[:axis] + self.shape[axis + 1 :])
    named, each = _weights(jnp.zeros((), wide), target, weight, ignore_index)
    grad = cast(grad_output, wide)
    if reduction == _MEAN:
        grad = grad / cast(total_weight, wide)
    at = jnp.expand_dims(-jnp.where(each != 0, grad * each, 0), axis)
    classes = jax.lax.broadcasted_iota(named.dtype, self.shape, axis)
    return jnp.where(classes == jnp.expand_dims(named, axis), at, 0)


_cross_entropy_loss = find("cross_entropy_loss")


def cross_entropy_loss(
    self: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """log_softmax and nll_loss; a mean with smoothed labels without torch's `masked_select`.

    Args:
        self: Scores, `(batch, classes, ...)` or `(classes,)`.
        target: Class indices, int64, `(batch, ...)` or `()`; or probabilities, sized as `self`.
        weight: One per class, `(classes,)`.
        reduction: aten's code.
        ignore_index: Targets of this value do not count.
        label_smoothing: Share of each target that is spread over all classes, from 0 to 1.
    """
    smoothed = reduction == _MEAN and 0 < label_smoothing <= 1
    if not smoothed or target.is_floating_point() or not is_real(self, target):
        made: torch.Tensor = composed(
            _cross_entropy_loss, self, target, weight, reduction, ignore_index, label_smoothing
        )
        return made
    axis = _class_axis(self)
    log_probs = torch.log_softmax(self, axis)
    exact = torch.nn.functional.nll_loss(log_probs, target, weight, ignore_index=ignore_index)
    counted = target != ignore_index
    if weight is None:
        shares, total = log_probs, counted.sum()
    else:
        shares = log_probs * weight.view([-1 if d == axis else 1 for d in range(self.dim())])
        named = weight[torch.where(counted, target, 0)]
        total = torch.where(counted, named, 0).sum()
    spread = -torch.where(counted, shares.sum(axis), 0).sum() / total
    return (1 - label_smoothing) * exact + label_smoothing / self.shape[axis] * spread


keep_whole(_cross_entropy_loss, cross_entropy_loss)


def _reduced(loss: Any, reduction: int) -> Any:
    return {_NONE: lambda x: x, _MEAN: jnp.mean, _SUM: jnp.sum}[reduction](loss)


def _spread(grad_output: Any, loss_grad: Any, reduction: int) -> Any:
    grad = _wide(grad_output) * loss_grad
    return grad / loss_grad.size if reduction == _MEAN else grad


@lowers("mse_loss")
def mse_loss(ctx: Any, self: Any, target: Any, reduction: int = _MEAN) -> Any:
    return _reduced((_wide(cast(self, ctx.dtype)) - _wide(cast(target, ctx.dtype))) ** 2, reduction)


@lowers("mse_loss_backward")
def mse_loss_backward(ctx: Any, grad_output: Any, self: Any, target: Any, reduction: int) -> Any:
    return _spread(grad_output, 2 * (_wide(self) - _wide(target)), reduction)


@lowers("smooth_l1_loss")
def smooth_l1_loss(
    ctx: Any, self: Any, target: Any, reduction: int = _MEAN, beta: Any = 1.0
) -> Any:
    away = jnp.abs(_wide(cast(self, ctx.dtype)) - _wide(cast(target, ctx.dtype)))
    edge = cast(beta, away.dtype)
    near = 0.5 * away * away / jnp.where(edge == 0, 1, edge)
    return _reduced(jnp.where(away < edge, near, away - 0.5 * edge), reduction)


@lowers("smooth_l1_loss_backward")
def smooth_l1_loss_backward(
    ctx: Any, grad_output: Any, self: Any, target: Any, reduction: int, beta: Any
) -> Any:
    away = _wide(self) - _wide(target)
    edge = cast(beta, away.dtype)
    near = away / jnp.where(edge == 0, 1, edge)
    return _spread(grad_output, jnp.where(jnp.abs(away) < edge, near, jnp.sign(away)), reduction)


@lowers("huber_loss")
def huber_loss(ctx: Any, self: Any, target: Any, reduction: int = _MEAN, delta: Any = 1.0) -> Any:
    away = jnp.abs(_wide(cast(self, ctx.dtype)) - _wide(cast(target, ctx.dtype)))
    edge = cast(delta, away.dtype)
    loss = jnp.where(away <= edge, 0.5 * away * away, edge * (away - 0.5 * edge))
    return _reduced(loss, reduction)


@lowers("huber_loss_backward")
def huber_loss_backward(
    ctx: Any, grad_output: Any, self: Any, target: Any, reduction: int, delta: Any
) -> Any:
    away = _wide(self) - _wide(target)
    edge = cast(delta, away.dtype)
    return _spread(grad_output, jnp.clip(away, -edge, edge), reduction)


def _log_or_floor(array: Any) -> Any:
    """log, no lower than -100: the floor torch gives binary cross entropy at 0 and 1."""
    return jnp.maximum(jnp.log(array), -100)


@lowers("binary_cross_entropy")
def binary_cross_entropy(
    ctx: Any, self: Any, target: Any, weight: Any = None, reduction: int = _MEAN
) -> Any:
    made, wanted = _wide(self), _wide(target)
    loss = -(wanted * _log_or_floor(made) + (1 - wanted) * _log_or_floor(1 - made))
    return _reduced(loss if weight is None else loss * _wide(weight), reduction)


@lowers("binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    ctx: Any, grad_output: Any, self: Any, target: Any, weight: Any = None, reduction: int = _MEAN
) -> Any:
    made, wanted = _wide(self), _wide(target)
    # torch's guard against dividing by zero.
    grad = (made - wanted) / jnp.maximum((1 - made) * made, 1e-12)
    return _spread(grad_output, grad if weight is None else grad * _wide(weight), reduction)
