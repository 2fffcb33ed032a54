"""Adaptive and fractional pooling: windows that follow from the input's and the output's size."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from trcomp.runtime.dispatch import implements
from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.pooling import max_over, scatter_planes
from trcomp.runtime.ops.registry import lowers
from trcomp.runtime.ops.resizing import along
from trcomp.runtime.ops.shaping import transpose_of
from trcomp.runtime.recording import record
from trcomp.runtime.storage import output


def _bounds(extent: int, out: int) -> tuple[Any, Any]:
    """First place and end of each window."""
    place = np.arange(out)
    return place * extent // out, -(-(place + 1) * extent // out)


def _average(self: Any, out: tuple[int, ...]) -> Any:
    extents = self.shape[-len(out) :]
    lead = self.shape[: self.ndim - len(out)]
    if all(n and extent % n == 0 for extent, n in zip(extents, out, strict=True)):
        blocks = [part for extent, n in zip(extents, out, strict=True) for part in (n, extent // n)]
        axes = tuple(range(len(lead) + 1, len(lead) + len(blocks), 2))
        return self.reshape(*lead, *blocks).mean(axis=axes)
    for d, (extent, n) in enumerate(zip(extents, out, strict=True)):
        first, end = _bounds(extent, n)
        place = np.arange(extent)
        inside = (place >= first[:, None]) & (place < end[:, None])
        self = along(self, inside / (end - first)[:, None], len(lead) + d)
    return self


def _register(rank: int) -> None:
    @lowers(f"_adaptive_avg_pool{rank}d")
    def average(ctx: Any, self: Any, output_size: tuple[int, ...]) -> Any:
        return _average(cast(self, ctx.opmath), ctx.size[-rank:])

    @lowers(f"_adaptive_avg_pool{rank}d_backward")
    def average_backward(ctx: Any, grad_output: Any, self: Any) -> Any:
        grad = cast(grad_output, ctx.opmath)
        return transpose_of(lambda x: _average(x, grad.shape[-rank:]), self.shape, grad)

    @lowers(f"adaptive_max_pool{rank}d")
    def maximum(ctx: Any, self: Any, output_size: tuple[int, ...]) -> Any:
        places = []
        for extent, n in zip(self.shape[-rank:], ctx.size[-rank:], strict=True):
            first, end = _bounds(extent, n)
            members = first[:, None] + np.arange((end - first).max(initial=0))
            # Shorter windows name their last place again.
            places.append(np.minimum(members, end[:, None] - 1))
        return max_over(self, places)

    @lowers(f"adaptive_max_pool{rank}d_backward")
    def maximum_backward(ctx: Any, grad_output: Any, self: Any, indices: Any) -> Any:
        grad = cast(grad_output, ctx.opmath)
        return scatter_planes(grad, indices, self.shape, rank)


def _fractional_places(sample: Any, extent: int, kernel: int, out: int) -> Any:
    """Places of each window's members, `(planes, out, kernel)`, from one number per plane."""
    place = np.arange(out)
    step = np.asarray((extent - kernel) / max(out - 1, 1), sample.dtype)
    first = jnp.trunc((place + sample[:, None]) * step) - jnp.trunc(sample[:, None] * step)
    first = jnp.where(place == out - 1, extent - kernel, first.astype(np.int64))
    return first[:, :, None] + np.arange(kernel)


def _register_fractional(rank: int) -> None:
    @lowers(f"fractional_max_pool{rank}d")
    def forward(
        ctx: Any,
        self: Any,
        kernel_size: tuple[int, ...],
        output_size: tuple[int, ...],
        random_samples: Any,
    ) -> Any:
        extents, outs = self.shape[-rank:], ctx.size[-rank:]
        planes = self.reshape(-1, math.prod(extents))
        samples = random_samples.reshape(-1, rank)[: len(planes)]
        flat = jnp.zeros((len(planes), *[1] * (2 * rank)), np.int64)
        for d in range(rank):
            # Two-dimensional pooling draws the last dimension's number first, as torch does.
            sample = samples[:, rank - 1 - d if rank == 2 else d]
            member = _fractional_places(sample, extents[d], kernel_size[d], outs[d])
            shape = [len(planes), *[1] * (2 * rank)]
            shape[1 + d], shape[1 + rank + d] = outs[d], kernel_size[d]
            flat = flat * extents[d] + member.reshape(shape)
        flat = flat.reshape(len(planes), math.prod(outs), math.prod(kernel_size))
        members = jnp.take_along_axis(planes[:, None], flat, 2)
        chosen = jnp.argmax(members, -1, keepdims=True)
        made = (jnp.take_along_axis(array, chosen, -1) for array in (members, flat))
        return tuple(array.reshape(ctx.size) for array in made)

    @lowers(f"trcomp::fractional_max_pool{rank}d_backward")
    def lower_backward(ctx: Any, grad_output: Any, indices: Any) -> Any:
        return scatter_planes(cast(grad_output, ctx.opmath), indices, ctx.size, rank)

    @implements(f"fractional_max_pool{rank}d_backward")
    def backward(
        grad_output: torch.Tensor,
        self: torch.Tensor,
        kernel_size: list[int],
        output_size: list[int],
        indices: torch.Tensor,
    ) -> torch.Tensor:
        made = record(
            f"trcomp::fractional_max_pool{rank}d_backward",
            (grad_output, indices),
            [output(tuple(self.shape), self.dtype)],
        )
        return made[0]


for _rank in (2, 3):
    _register(_rank)
    _register_fractional(_rank)
