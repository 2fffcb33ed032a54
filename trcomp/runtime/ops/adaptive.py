"""Adaptive pooling: windows that follow from the input's and the output's size."""

from __future__ import annotations

from typing import Any

import numpy as np

from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.pooling import max_over, scatter_planes
from trcomp.runtime.ops.registry import lowers
from trcomp.runtime.ops.resizing import along
from trcomp.runtime.ops.shaping import transpose_of


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


for _rank in (2, 3):
    _register(_rank)
