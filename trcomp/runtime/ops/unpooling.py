"""Max pooling undone: each value goes back to the place that it was the largest of."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp

from trcomp.runtime.ops.registry import lowers


def _unpooled(ctx: Any, self: Any, indices: Any, rank: int) -> Any:
    planes = math.prod(ctx.size[: len(ctx.size) - rank])
    places = math.prod(ctx.size[len(ctx.size) - rank :])
    given = (planes, math.prod(self.shape[self.ndim - rank :]))
    values, index = self.reshape(given), indices.reshape(given)
    plane = jnp.arange(planes)[:, None]
    empty = jnp.zeros((planes, places), self.dtype)
    return empty.at[plane, index].set(values, mode="drop").reshape(ctx.size)


@lowers("max_unpool2d")
def max_unpool2d(ctx: Any, self: Any, indices: Any, output_size: tuple[int, ...]) -> Any:
    return _unpooled(ctx, self, indices, 2)


@lowers("max_unpool3d")
def max_unpool3d(
    ctx: Any,
    self: Any,
    indices: Any,
    output_size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
) -> Any:
    return _unpooled(ctx, self, indices, 3)
