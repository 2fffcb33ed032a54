"""Convolution, in the forms that XLA runs well on each platform.

On GPUs XLA's own convolution goes to cuDNN. On the CPU it is up to 80 times slower than torch where
the result is no larger than the kernel, and slow with one filter per channel; those, kernels of one
element and patch embeddings are laid out as patches there and multiplied as matrices.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from trcomp.runtime.dtypes import cast, opmath
from trcomp.runtime.ops.registry import lowers


def _spatial(values: tuple[int, ...], ndim: int) -> tuple[int, ...]:
    return tuple(values) * ndim if len(values) == 1 else tuple(values)


def _convolve(
    ctx: Any,
    input: Any,
    weight: Any,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
    groups: int,
) -> Any:
    """Convolve `(batch, channel, *spatial)` with `(out, in / groups, *kernel)`."""
    ndim = input.ndim - 2
    stride, padding = _spatial(stride, ndim), _spatial(padding, ndim)
    dilation = _spatial(dilation, ndim)
    if transposed:
        extra = _spatial(output_padding, ndim)
        return _transposed(input, weight, stride, padding, dilation, extra, groups)
    if ctx.platform == "cpu" and _suits_patches(input, weight, stride, padding, dilation, groups):
        # Sums of the half types are kept in float32, as torch and cuDNN keep them.
        wide = opmath(input.dtype)
        made = _by_patches(cast(input, wide), cast(weight, wide), stride, padding, dilation, groups)
        return cast(made, input.dtype)
    return lax.conv_general_dilated(
        input,
        weight,
        stride,
        [(p, p) for p in padding],
        rhs_dilation=dilation,
        feature_group_count=groups,
    )


def _sizes(
    extent: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> list[int]:
    """Spatial size of a convolution's result."""
    return [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(extent, padding, dilation, kernel, stride, strict=True)
    ]


def _suits_patches(
    input: Any,
    weight: Any,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> bool:
    kernel = weight.shape[2:]
    if groups == input.shape[1] > 1 and weight.shape[1] == 1:
        return True
    if kernel == stride or math.prod(kernel) == 1:
        return True
    size = _sizes(input.shape[2:], kernel, stride, padding, dilation)
    return any(n <= k for n, k in zip(size, kernel, strict=True))


def _transposed(
    input: Any,
    weight: Any,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    extra: tuple[int, ...],
    groups: int,
) -> Any:
    """The gradient of a convolution with regard to its input; weight `(in, out / groups, ...)`."""
    kernel = weight.shape[2:]
    inward, outward = weight.shape[:2]
    split = weight.reshape(groups, inward // groups, outward, *kernel)
    turned = jnp.flip(jnp.swapaxes(split, 1, 2), tuple(range(3, 3 + len(kernel))))
    turned = turned.reshape(groups * outward, inward // groups, *kernel)
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    edges = [(r - p, r - p + e) for r, p, e in zip(reach, padding, extra, strict=True)]
    return lax.conv_general_dilated(
        input,
        turned,
        (1,) * len(kernel),
        edges,
        lhs_dilation=stride,
        rhs_dilation=dilation,
        feature_group_count=groups,
    )


def _by_patches(
    input: Any,
    weight: Any,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Any:
    batch, channels, *extent = input.shape
    kernel = weight.shape[2:]
    if any(padding):
        input = jnp.pad(input, [(0, 0), (0, 0), *((p, p) for p in padding)])
    size = _sizes(tuple(extent), kernel, stride, padding, dilation)
    shifted = []
    for offset in itertools.product(*(range(k) for k in kernel)):
        start = [o * d for o, d in zip(offset, dilation, strict=True)]
        stop = [a + s * (n - 1) + 1 for a, s, n in zip(start, stride, size, strict=True)]
        shifted.append(lax.slice(input, (0, 0, *start), (batch, channels, *stop), (1, 1, *stride)))
    taps = len(shifted)
    if groups == channels and weight.shape[1] == 1:
        return _depthwise(shifted, weight.reshape(weight.shape[0], taps))
    positions = math.prod(size)
    patches = jnp.stack(shifted, 2).reshape(batch, groups, channels // groups * taps, positions)
    rows = weight.reshape(groups, weight.shape[0] // groups, -1)
    if positions * 4 < rows.shape[1] and groups == 1:
        # Few positions: one product over the whole batch instead of a small one per sample.
        flat = patches[:, 0].transpose(0, 2, 1).reshape(batch * positions, -1)
        made = (flat @ rows[0].T).reshape(batch, positions, -1).transpose(0, 2, 1)
    else:
        made = jnp.matmul(rows[None], patches)
    return made.reshape(batch, weight.shape[0], *size)


def _depthwise(shifted: list[Any], weight: Any) -> Any:
    """One filter (or a few) per channel: shifted images, scaled and summed in one fused loop."""
    batch, channels, *size = shifted[0].shape
    filters = weight.reshape(channels, -1, len(shifted))
    total: Any = 0
    for tap, image in enumerate(shifted):
        factor = filters[None, :, :, tap].reshape(1, channels, -1, *[1] * len(size))
        total = total + image[:, :, None] * factor
    return total.reshape(batch, -1, *size)


@lowers("convolution", one_dtype=True)
def convolution(
    ctx: Any,
    input: Any,
    weight: Any,
    bias: Any,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
    groups: int,
) -> Any:
    made = _convolve(
        ctx, input, weight, stride, padding, dilation, transposed, output_padding, groups
    )
    if bias is None:
        return made
    return made + cast(bias, made.dtype).reshape(1, -1, *[1] * (made.ndim - 2))


@lowers("convolution_backward")
def convolution_backward(
    ctx: Any,
    grad_output: Any,
    input: Any,
    weight: Any,
    bias_sizes: Any,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
    groups: int,
    output_mask: tuple[bool, ...],
) -> Any:
    def forward(input: Any, weight: Any) -> Any:
        return _convolve(
            ctx, input, weight, stride, padding, dilation, transposed, output_padding, groups
        )

    made = []
    if output_mask[0] or output_mask[1]:
        _, pull = jax.vjp(forward, input, weight)
        grads = pull(cast(grad_output, input.dtype))
        made += [grad for grad, wanted in zip(grads, output_mask, strict=False) if wanted]
    if output_mask[2]:
        made.append(jnp.sum(grad_output, (0, *range(2, grad_output.ndim))))
    return made
