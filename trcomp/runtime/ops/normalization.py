"""Layer, group and batch normalization, forward and backward, statistics in float32 or wider."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from trcomp.runtime.dispatch import implements
from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.registry import lowers
from trcomp.runtime.recording import Lifted, emit, put_all_back, tensors_of
from trcomp.runtime.storage import output


def _wide(array: Any) -> Any:
    return cast(array, jnp.promote_types(array.dtype, np.float32))


def moments(array: Any, axes: tuple[int, ...]) -> tuple[Any, Any]:
    """Mean and biased variance over `axes`, kept as extents of one.

    One pass over the data, which XLA fuses into one loop. The variance does not change when
    a constant is taken off, so the first element of each group is: without it, data far from zero
    would lose all its digits to cancellation.
    """
    first = tuple(slice(0, 1) if d in axes else slice(None) for d in range(array.ndim))
    origin = lax.stop_gradient(array[first])
    shifted = array - origin
    mean = jnp.mean(shifted, axes, keepdims=True)
    square = jnp.mean(shifted * shifted, axes, keepdims=True)
    return mean + origin, jnp.maximum(square - mean * mean, 0)


@lowers("native_layer_norm")
def native_layer_norm(
    ctx: Any, input: Any, normalized_shape: tuple[int, ...], weight: Any, bias: Any, eps: Any
) -> Any:
    wide = _wide(input)
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    mean, variance = moments(wide, axes)
    rstd = lax.rsqrt(variance + cast(eps, wide.dtype))
    made = (wide - mean) * rstd
    if weight is not None:
        made = made * _wide(weight)
    if bias is not None:
        made = made + _wide(bias)
    return made, mean.reshape(ctx.sizes[1]), rstd.reshape(ctx.sizes[2])


@lowers("native_layer_norm_backward")
def native_layer_norm_backward(
    ctx: Any,
    grad_out: Any,
    input: Any,
    normalized_shape: tuple[int, ...],
    mean: Any,
    rstd: Any,
    weight: Any,
    bias: Any,
    output_mask: tuple[bool, ...],
) -> Any:
    wide, grad = _wide(input), _wide(grad_out)
    lead = tuple(range(input.ndim - len(normalized_shape)))
    axes = tuple(range(len(lead), input.ndim))
    kept = tuple(1 if d in axes else n for d, n in enumerate(input.shape))
    rstd = cast(rstd, wide.dtype).reshape(kept)
    normalized = (wide - cast(mean, wide.dtype).reshape(kept)) * rstd
    made = []
    if output_mask[0]:
        inner = grad if weight is None else grad * _wide(weight)
        average = jnp.mean(inner, axes, keepdims=True)
        along = jnp.mean(inner * normalized, axes, keepdims=True)
        made.append(rstd * (inner - average - normalized * along))
    if output_mask[1] and weight is not None:
        made.append(jnp.sum(grad * normalized, lead))
    if output_mask[2] and bias is not None:
        made.append(jnp.sum(grad, lead))
    return made


@lowers("native_group_norm")
def native_group_norm(
    ctx: Any,
    input: Any,
    weight: Any,
    bias: Any,
    N: int,  # noqa: N803 - aten's own names
    C: int,  # noqa: N803
    HxW: int,  # noqa: N803
    group: int,
    eps: Any,
) -> Any:
    wide = _wide(input).reshape(N, group, C // group, HxW)
    mean, variance = moments(wide, (2, 3))
    rstd = lax.rsqrt(variance + cast(eps, wide.dtype))
    made = ((wide - mean) * rstd).reshape(N, C, HxW)
    if weight is not None:
        made = made * _wide(weight).reshape(1, C, 1)
    if bias is not None:
        made = made + _wide(bias).reshape(1, C, 1)
    return made.reshape(input.shape), mean.reshape(N, group), rstd.reshape(N, group)


@lowers("native_group_norm_backward")
def native_group_norm_backward(
    ctx: Any,
    grad_out: Any,
    input: Any,
    mean: Any,
    rstd: Any,
    weight: Any,
    N: int,  # noqa: N803
    C: int,  # noqa: N803
    HxW: int,  # noqa: N803
    group: int,
    output_mask: tuple[bool, ...],
) -> Any:
    split = (N, group, C // group, HxW)
    wide, grad = _wide(input).reshape(split), _wide(grad_out).reshape(split)
    rstd = cast(rstd, wide.dtype).reshape(N, group, 1, 1)
    normalized = (wide - cast(mean, wide.dtype).reshape(N, group, 1, 1)) * rstd
    made = []
    if output_mask[0]:
        scale = 1 if weight is None else _wide(weight).reshape(1, group, C // group, 1)
        inner = grad * scale
        average = jnp.mean(inner, (2, 3), keepdims=True)
        along = jnp.mean(inner * normalized, (2, 3), keepdims=True)
        made.append((rstd * (inner - average - normalized * along)).reshape(input.shape))
    if output_mask[1]:
        made.append(jnp.sum(grad * normalized, (0, 3)).reshape(C))
    if output_mask[2]:
        made.append(jnp.sum(grad, (0, 3)).reshape(C))
    return made


def _channels(array: Any, ndim: int) -> Any:
    """A vector over channels, shaped to broadcast over `(batch, channel, ...)`."""
    return array.reshape(1, -1, *[1] * (ndim - 2))


@lowers("trcomp::batch_norm")
def _batch_norm(
    ctx: Any,
    input: Any,
    weight: Any,
    bias: Any,
    running: Any,
    training: bool,
    momentum: Any,
    eps: Any,
) -> Any:
    wide = _wide(input)
    axes = tuple(d for d in range(input.ndim) if d != 1)
    if training:
        mean, variance = moments(wide, axes)
    else:
        mean, variance = (_channels(cast(r, wide.dtype), input.ndim) for r in running)
    rstd = lax.rsqrt(variance + cast(eps, wide.dtype))
    made = (wide - mean) * rstd
    if weight is not None:
        made = made * _channels(_wide(weight), input.ndim)
    if bias is not None:
        made = made + _channels(_wide(bias), input.ndim)
    if not training:
        return (made,)
    saved = [mean.reshape(-1), rstd.reshape(-1)]
    if running:
        count = math.prod(input.shape[d] for d in axes)
        unbiased = variance.reshape(-1) * (count / max(count - 1, 1))
        step = cast(momentum, wide.dtype)
        for old, new in zip(running, (saved[0], unbiased), strict=True):
            saved.append(cast(old, wide.dtype) * (1 - step) + new * step)
    return (made, *saved)


def batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normalize `(batch, channel, ...)` per channel; in training the running statistics move.

    Returns:
        The result, and the batch's mean and 1 / sqrt(variance + eps), empty in evaluation.
    """
    channels = (input.shape[1],)
    wide = torch.promote_types(input.dtype, torch.float32)
    running = [t for t in (running_mean, running_var) if t is not None]
    outputs = [output(tuple(input.shape), input.dtype)]
    if training:
        outputs += [output(channels, wide)] * 2
        outputs += [output(channels, t.dtype) for t in running]
    numbers = (Lifted(float(momentum)), Lifted(float(eps)))
    node = emit("trcomp::batch_norm", (input, weight, bias, running, training, *numbers), outputs)
    if not training:
        none = input.new_empty((0,), dtype=wide)
        return tensors_of(node)[0], none, none
    put_all_back(running, node, first=3)
    made, mean, rstd, *_ = tensors_of(node)
    return made, mean, rstd


implements("native_batch_norm", "_native_batch_norm_legit")(batch_norm)


@implements("_native_batch_norm_legit.no_stats")
def _batch_norm_no_stats(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return batch_norm(input, weight, bias, None, None, training, momentum, eps)


@implements("_native_batch_norm_legit_functional")
def _batch_norm_functional(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """`_native_batch_norm_legit` that returns new running statistics and leaves the old ones."""
    mean, var = running_mean.clone(), running_var.clone()
    made = batch_norm(input, weight, bias, mean, var, training, momentum, eps)
    return (*made, mean, var)


@lowers("native_batch_norm_backward")
def native_batch_norm_backward(
    ctx: Any,
    grad_out: Any,
    input: Any,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    save_mean: Any,
    save_invstd: Any,
    train: bool,
    eps: Any,
    output_mask: tuple[bool, ...],
) -> Any:
    wide, grad = _wide(input), _wide(grad_out)
    axes = tuple(d for d in range(input.ndim) if d != 1)
    if train:
        mean, rstd = cast(save_mean, wide.dtype), cast(save_invstd, wide.dtype)
    else:
        mean = cast(running_mean, wide.dtype)
        rstd = lax.rsqrt(cast(running_var, wide.dtype) + cast(eps, wide.dtype))
    mean, rstd = _channels(mean, input.ndim), _channels(rstd, input.ndim)
    normalized = (wide - mean) * rstd
    grad_bias = jnp.sum(grad, axes)
    grad_weight = jnp.sum(grad * normalized, axes)
    scale = rstd if weight is None else rstd * _channels(_wide(weight), input.ndim)
    inner = grad
    if train:
        count = math.prod(input.shape[d] for d in axes)
        average = _channels(grad_bias, input.ndim) / count
        along = _channels(grad_weight, input.ndim) / count
        inner = grad - average - normalized * along
    # torch's meta kernel has the first gradient even where the mask leaves it out.
    made = [inner * scale]
    if output_mask[1]:
        made.append(grad_weight)
    if output_mask[2]:
        made.append(grad_bias)
    return made
