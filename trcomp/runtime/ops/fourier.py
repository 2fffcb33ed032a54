"""Fourier transforms: torch's three kinds, each over any number of dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.registry import lowers

_MOST_AXES = 3
"""XLA transforms at most so many dimensions in one operation."""


def _scaled(result: Any, extents: Sequence[int], normalization: int) -> Any:
    """torch's normalization: 0 as it is, 1 by the root of the number of terms, 2 by the number."""
    if not normalization:
        return result
    terms = math.prod(extents)
    return result / (math.sqrt(terms) if normalization == 1 else terms)


def _complex_transform(x: Any, axes: Sequence[int], forward: bool) -> Any:
    for first in range(0, len(axes), _MOST_AXES):
        some = tuple(axes[first : first + _MOST_AXES])
        # "forward" puts the whole factor on the forward transform, so the inverse has none.
        x = jnp.fft.fftn(x, axes=some) if forward else jnp.fft.ifftn(x, axes=some, norm="forward")
    return x


@lowers("_fft_c2c")
def fft_c2c(ctx: Any, self: Any, dim: tuple[int, ...], normalization: int, forward: bool) -> Any:
    if not self.size:
        return self
    result = _complex_transform(self, dim, forward)
    return _scaled(result, [self.shape[d] for d in dim], normalization)


@lowers("_fft_r2c")
def fft_r2c(ctx: Any, self: Any, dim: tuple[int, ...], normalization: int, onesided: bool) -> Any:
    extents = [self.shape[d] for d in dim]
    if not onesided:
        return _scaled(_complex_transform(cast(self, ctx.dtype), dim, True), extents, normalization)
    half = jnp.fft.rfft(self, axis=dim[-1])
    return _scaled(_complex_transform(half, dim[:-1], True), extents, normalization)


@lowers("_fft_c2r")
def fft_c2r(
    ctx: Any, self: Any, dim: tuple[int, ...], normalization: int, last_dim_size: int
) -> Any:
    whole = _complex_transform(self, dim[:-1], False)
    result = jnp.fft.irfft(whole, n=last_dim_size, axis=dim[-1], norm="forward")
    return _scaled(result, [ctx.size[d] for d in dim], normalization)
