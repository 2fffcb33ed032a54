"""Distances between the rows of two matrices."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.registry import lowers


def _distances(x1: Any, x2: Any, p: float) -> Any:
    """p-norms of the differences of rows, shape (..., rows of x1, rows of x2)."""
    gap = x1[..., :, None, :] - x2[..., None, :, :]
    gap = gap * lax.stop_gradient(jnp.sign(gap))  # its slope at zero is zero, as in torch
    if p == 0:
        return jnp.sum((gap != 0).astype(gap.dtype), axis=-1)
    if math.isinf(p):
        return jnp.max(gap, axis=-1, initial=0)
    if p == 1:
        return jnp.sum(gap, axis=-1)
    total = jnp.sum(gap**p, axis=-1)
    safe = jnp.where(total > 0, total, 1)
    return jnp.where(total > 0, safe ** (1 / p), 0)


@lowers("_cdist_forward", static=("p",))
def cdist(ctx: Any, x1: Any, x2: Any, p: float, compute_mode: int | None) -> Any:
    return _distances(cast(x1, ctx.opmath), cast(x2, ctx.opmath), p)


@lowers("_cdist_backward", static=("p",))
def cdist_backward(ctx: Any, grad: Any, x1: Any, x2: Any, p: float, cdist: Any) -> Any:
    others = cast(x2, ctx.opmath)
    _, pull = jax.vjp(lambda x: _distances(x, others, p), cast(x1, ctx.opmath))
    return pull(cast(grad, ctx.opmath))[0]
