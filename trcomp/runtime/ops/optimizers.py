"""The fused optimizers: one node updates every parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import torch

from trcomp.runtime.dispatch import implements
from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.registry import lowers
from trcomp.runtime.recording import Lifted, emit, put_all_back
from trcomp.runtime.storage import is_dense, output

Tensors = Sequence[torch.Tensor]


def _number(value: Any) -> Any:
    return value if isinstance(value, torch.Tensor) else Lifted(float(value))


def _update(name: str, lists: Sequence[Tensors], arguments: Sequence[Any], written: int) -> None:
    """Record a step over lists of tensors and write the first `written` lists back."""
    targets = [tensor for tensors in lists[:written] for tensor in tensors]
    outputs = []
    for tensor in targets:
        size, stride = tuple(tensor.size()), tensor.stride()
        outputs.append(output(size, tensor.dtype, stride if is_dense(size, stride) else None))
    node = emit(name, (*(list(tensors) for tensors in lists), *arguments), outputs)
    put_all_back(targets, node)


def _guarded(old: Any, new: Any, found_inf: Any) -> Any:
    """The old value if the gradients overflowed: the step is skipped without the host knowing."""
    return new if found_inf is None else jnp.where(found_inf.reshape(()) != 0, old, new)


def _unscale(grads: Tensors, scale: torch.Tensor | None) -> None:
    """Divide gradients by a scaler's scale, in place: torch's fused kernels leave them so."""
    if scale is not None:
        torch._foreach_div_(list(grads), scale)


@lowers("trcomp::fused_adam")
def _fused_adam(
    ctx: Any,
    params: Any,
    exp_avgs: Any,
    exp_avg_sqs: Any,
    max_exp_avg_sqs: Any,
    grads: Any,
    steps: Any,
    lr: Any,
    beta1: Any,
    beta2: Any,
    weight_decay: Any,
    eps: Any,
    decoupled: bool,
    amsgrad: bool,
    maximize: bool,
    found_inf: Any,
) -> Any:
    made: list[list[Any]] = [[], [], [], []]
    for i, (param, avg, square, grad, step) in enumerate(
        zip(params, exp_avgs, exp_avg_sqs, grads, steps, strict=True)
    ):
        dtype = param.dtype
        rate, b1, b2, decay, tiny = (cast(n, dtype) for n in (lr, beta1, beta2, weight_decay, eps))
        grad = cast(-grad if maximize else grad, dtype)
        old = param
        if decoupled:
            param = param * (1 - rate * decay)
        else:
            grad = grad + param * decay
        new_avg = avg + (grad - avg) * (1 - b1)
        new_square = square * b2 + (1 - b2) * grad * grad
        count = cast(step, dtype)
        correction1, correction2 = 1 - b1**count, 1 - b2**count
        spread = new_square
        if amsgrad:
            spread = jnp.maximum(max_exp_avg_sqs[i], new_square)
            made[3].append(_guarded(max_exp_avg_sqs[i], spread, found_inf))
        denominator = jnp.sqrt(spread) / jnp.sqrt(correction2) + tiny
        param = param - rate / correction1 * new_avg / denominator
        made[0].append(_guarded(old, param, found_inf))
        made[1].append(_guarded(avg, new_avg, found_inf))
        made[2].append(_guarded(square, new_square, found_inf))
    return [array for arrays in made for array in arrays]


def _adam(decoupled: bool) -> Any:
    def kernel(
        self: Tensors,
        grads: Tensors,
        exp_avgs: Tensors,
        exp_avg_sqs: Tensors,
        max_exp_avg_sqs: Tensors,
        state_steps: Tensors,
        *,
        lr: float | torch.Tensor,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: torch.Tensor | None = None,
        found_inf: torch.Tensor | None = None,
    ) -> None:
        _unscale(grads, grad_scale)
        numbers = [_number(n) for n in (lr, beta1, beta2, weight_decay, eps)]
        _update(
            "trcomp::fused_adam",
            [self, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, grads, state_steps],
            [*numbers, decoupled, amsgrad, maximize, found_inf],
            written=4 if amsgrad else 3,
        )

    return kernel


implements("_fused_adam_", "_fused_adam_.tensor_lr")(_adam(decoupled=False))
implements("_fused_adamw_", "_fused_adamw_.tensor_lr")(_adam(decoupled=True))


@lowers("trcomp::fused_sgd")
def _fused_sgd(
    ctx: Any,
    params: Any,
    buffers: Any,
    grads: Any,
    lr: Any,
    weight_decay: Any,
    momentum: Any,
    dampening: Any,
    with_momentum: bool,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    found_inf: Any,
) -> Any:
    made: list[list[Any]] = [[], []]
    for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
        dtype = param.dtype
        rate, decay, speed, damp = (cast(n, dtype) for n in (lr, weight_decay, momentum, dampening))
        grad = cast(-grad if maximize else grad, dtype) + param * decay
        if with_momentum:
            velocity = grad if is_first_step else buffers[i] * speed + grad * (1 - damp)
            made[1].append(_guarded(buffers[i], velocity, found_inf))
            grad = grad + velocity * speed if nesterov else velocity
        made[0].append(_guarded(param, param - rate * grad, found_inf))
    return [array for arrays in made for array in arrays]


@implements("_fused_sgd_", "_fused_sgd_.tensor_lr")
def _fused_sgd_(
    self: Tensors,
    grads: Tensors,
    momentum_buffer_list: Tensors,
    *,
    weight_decay: float,
    momentum: float,
    lr: float | torch.Tensor,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    buffers = list(momentum_buffer_list)
    _unscale(grads, grad_scale)
    numbers = [_number(n) for n in (lr, weight_decay, momentum, dampening)]
    flags = [bool(buffers), nesterov, maximize, is_first_step]
    _update(
        "trcomp::fused_sgd",
        [self, buffers, grads],
        [*numbers, *flags, found_inf],
        written=2,
    )


@lowers("trcomp::fused_adagrad")
def _fused_adagrad(
    ctx: Any,
    params: Any,
    state_sums: Any,
    grads: Any,
    steps: Any,
    lr: Any,
    lr_decay: Any,
    weight_decay: Any,
    eps: Any,
    maximize: bool,
    found_inf: Any,
) -> Any:
    made: list[list[Any]] = [[], []]
    for param, total, grad, step in zip(params, state_sums, grads, steps, strict=True):
        dtype = param.dtype
        rate, slow, decay, tiny = (cast(n, dtype) for n in (lr, lr_decay, weight_decay, eps))
        grad = cast(-grad if maximize else grad, dtype) + param * decay
        rate = rate / (1 + (cast(step, dtype) - 1) * slow)
        new_total = total + grad * grad
        updated = param - rate * grad / (jnp.sqrt(new_total) + tiny)
        made[0].append(_guarded(param, updated, found_inf))
        made[1].append(_guarded(total, new_total, found_inf))
    return [array for arrays in made for array in arrays]


@implements("_fused_adagrad_", "_fused_adagrad_.tensor_lr")
def _fused_adagrad_(
    self: Tensors,
    grads: Tensors,
    state_sums: Tensors,
    state_steps: Tensors,
    *,
    lr: float | torch.Tensor,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    _unscale(grads, grad_scale)
    numbers = [_number(n) for n in (lr, lr_decay, weight_decay, eps)]
    _update(
        "trcomp::fused_adagrad",
        [self, state_sums, grads, state_steps],
        [*numbers, maximize, found_inf],
        written=2,
    )
