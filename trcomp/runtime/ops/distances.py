"""Distances between the rows of two matrices, or of one."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.registry import lowers


def _distances(x1: Any, x2: Any, p: float) -> Any:
    """p-norms of the differences of rows, shape (..., rows of x1, rows of x2)."""
    return _norms(x1[..., :, None, :] - x2[..., None, :, :], p)


def _norms(gap: Any, p: float) -> Any:
    """p-norms along the last dimension."""
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
    # The gradient of each batch apart: autograd itself adds up what x1 was broadcast to.
    points = jnp.broadcast_to(cast(x1, ctx.opmath), ctx.size)
    _, pull = jax.vjp(lambda x: _distances(x, others, p), points)
    return pull(cast(grad, ctx.opmath))[0]


def _pairs(rows: Any, p: float) -> Any:
    """Distances between all pairs of rows, in the order of a matrix's upper triangle."""
    first, second = np.triu_indices(rows.shape[0], 1)
    return _norms(rows[first] - rows[second], p)


@lowers("_pdist_forward", static=("p",))
def pdist(ctx: Any, self: Any, p: float = 2) -> Any:
    return _pairs(cast(self, ctx.opmath), p)


@lowers("_pdist_backward", static=("p",))
def pdist_backward(ctx: Any, grad: Any, self: Any, p: float, pdist: Any) -> Any:
    _, pull = jax.vjp(lambda x: _pairs(x, p), cast(self, ctx.opmath))
    return pull(cast(grad, ctx.opmath))[0]
