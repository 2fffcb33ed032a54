"""Special functions beyond the elementary ones, where XLA's agree with torch's."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import torch
from jax import lax

from trcomp.runtime.dispatch import implements
from trcomp.runtime.dtypes import cast
from trcomp.runtime.fallback import run_on_cpu
from trcomp.runtime.ops.registry import find, lowers
from trcomp.runtime.recording import record
from trcomp.runtime.storage import output

_SHIFTS = 6
"""Steps up the recurrence before the asymptotic series is exact in float64."""


def _float_pair(ctx: Any, left: Any, right: Any) -> tuple[Any, Any]:
    pair = jnp.broadcast_arrays(cast(left, ctx.opmath), cast(right, ctx.opmath))
    return pair[0], pair[1]


@lowers("igamma")
def igamma(ctx: Any, self: Any, other: Any) -> Any:
    return lax.igamma(*_float_pair(ctx, self, other))


@lowers("igammac")
def igammac(ctx: Any, self: Any, other: Any) -> Any:
    return lax.igammac(*_float_pair(ctx, self, other))


@lowers("trcomp::trigamma")
def trigamma(ctx: Any, self: Any) -> Any:
    """The slope of digamma; XLA's own is wrong far below zero."""
    x = cast(self, ctx.opmath)
    mirrored = x < 0.5
    y = jnp.where(mirrored, 1 - x, x)
    total = jnp.zeros_like(y)
    for _ in range(_SHIFTS):
        total, y = total + 1 / (y * y), y + 1
    square = 1 / (y * y)
    series = 1 + 1 / (2 * y) + square * (1 / 6 - square * (1 / 30 - square / 42))
    total = total + series / y
    return jnp.where(mirrored, (jnp.pi / jnp.sin(jnp.pi * x)) ** 2 - total, total)


@implements("polygamma")
def polygamma(n: int, self: torch.Tensor) -> torch.Tensor:
    """The n-th derivative of digamma, from the second on by the CPU."""
    if n == 0:
        return torch.digamma(self)
    if n != 1:
        return run_on_cpu(find("polygamma"), n, self)
    dtype = self.dtype if self.is_floating_point() else torch.get_default_dtype()
    return record("trcomp::trigamma", (self,), [output(tuple(self.size()), dtype)])[0]
