"""Sliding windows laid out as columns, and columns summed back: im2col and col2im."""

from __future__ import annotations

import itertools
from typing import Any

import jax.numpy as jnp
from jax import lax

from trcomp.runtime.ops.registry import lowers
from trcomp.runtime.ops.shaping import transpose_of

Pair = tuple[int, int]


def _columns(image: Any, kernel: Pair, dilation: Pair, padding: Pair, stride: Pair) -> Any:
    """Every window of the last two dimensions as a column, shape (..., C * kernel, windows)."""
    *batch, channels, height, width = image.shape
    edges = [(0, 0, 0)] * (image.ndim - 2) + [(p, p, 0) for p in padding]
    padded = lax.pad(image, jnp.zeros((), image.dtype), edges)
    extents = (height, width)
    steps = [
        (extents[d] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) // stride[d]
        for d in range(2)
    ]
    parts = []
    for place in itertools.product(range(kernel[0]), range(kernel[1])):
        first = [place[d] * dilation[d] for d in range(2)]
        rows, columns = (
            slice(first[d], first[d] + steps[d] * stride[d] + 1, stride[d]) for d in range(2)
        )
        parts.append(padded[..., rows, columns])
    stacked = jnp.stack(parts, axis=len(batch) + 1)
    return stacked.reshape(*batch, channels * len(parts), (steps[0] + 1) * (steps[1] + 1))


@lowers("im2col")
def im2col(
    ctx: Any, self: Any, kernel_size: Pair, dilation: Pair, padding: Pair, stride: Pair
) -> Any:
    return _columns(self, kernel_size, dilation, padding, stride)


@lowers("col2im")
def col2im(
    ctx: Any,
    self: Any,
    output_size: Pair,
    kernel_size: Pair,
    dilation: Pair,
    padding: Pair,
    stride: Pair,
) -> Any:
    def columns(image: Any) -> Any:
        return _columns(image, kernel_size, dilation, padding, stride)

    return transpose_of(columns, ctx.size, self)
