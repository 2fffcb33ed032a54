"""Pooling and its backwards: shifted slices that XLA fuses, gathers for large windows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.elementwise import is_integral
from trcomp.runtime.ops.registry import lowers
from trcomp.runtime.ops.shaping import transpose_of

Sizes = tuple[int, ...]

_MAX_UNROLLED = 64
"""Windows of more elements than this are gathered: one slice each would compile for long."""


class Windows(NamedTuple):
    """Where windows lie over an array's last dimensions, one entry per dimension."""

    extent: Sizes
    kernel: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    out: Sizes

    @property
    def volume(self) -> int:
        """Elements in one window."""
        return math.prod(self.kernel)

    def offsets(self) -> Iterator[Sizes]:
        """Each element of a window as its distance from the window's first."""
        for place in itertools.product(*(range(n) for n in self.kernel)):
            yield tuple(p * d for p, d in zip(place, self.dilation, strict=True))

    def plane_stride(self) -> Sizes:
        """Row-major strides of the pooled dimensions."""
        steps = [math.prod(self.extent[d + 1 :]) for d in range(len(self.extent))]
        return tuple(steps)


def _spread(numbers: Sequence[int], rank: int) -> Sizes:
    """torch's int[rank] argument, where one number stands for all."""
    return tuple(numbers) * rank if len(numbers) == 1 else tuple(numbers)


def windows_over(
    self: Any,
    rank: int,
    out: Sizes,
    kernel: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0,),
    dilation: Sizes = (1,),
) -> Windows:
    """The windows of a pooling call, given the size of its output."""
    kernel = _spread(kernel, rank)
    return Windows(
        self.shape[-rank:],
        kernel,
        _spread(stride, rank) if stride else kernel,
        _spread(padding, rank),
        _spread(dilation, rank),
        out[-rank:],
    )


def _padded(self: Any, windows: Windows, fill: Any) -> Any:
    """`self` with what the windows reach over its edges."""
    config = [(0, 0, 0)] * (self.ndim - len(windows.extent))
    for extent, kernel, stride, pad, dilation, out in zip(*windows, strict=True):
        reach = (out - 1) * stride + (kernel - 1) * dilation + 1
        config.append((pad, max(reach - pad - extent, 0), 0))
    return lax.pad(self, jnp.asarray(fill, self.dtype), config)


def _shifted(padded: Any, windows: Windows, offset: Sizes) -> Any:
    """The element at `offset` of every window."""
    lead = padded.ndim - len(offset)
    spans = [(n - 1) * s + 1 for n, s in zip(windows.out, windows.stride, strict=True)]
    start = (0,) * lead + offset
    stop = padded.shape[:lead] + tuple(o + n for o, n in zip(offset, spans, strict=True))
    return lax.slice(padded, start, stop, (1,) * lead + windows.stride)


def _unshifted(part: Any, windows: Windows, offset: Sizes) -> Any:
    """Elements of every window put back at `offset` of each, zeros elsewhere."""
    config = [(0, 0, 0)] * (part.ndim - len(offset))
    for o, extent, stride, pad, out in zip(
        offset, windows.extent, windows.stride, windows.padding, windows.out, strict=True
    ):
        before = o - pad
        config.append((before, extent - before - (out - 1) * stride - 1, stride - 1))
    return lax.pad(part, jnp.zeros((), part.dtype), config)


def _first_places(windows: Windows, shape: Sizes) -> Any:
    """Flat position in the plane of each window's first element, which may lie in the padding."""
    base = jnp.zeros(shape, jnp.int64)
    lead = len(shape) - len(windows.out)
    for d, step in enumerate(windows.plane_stride()):
        place = lax.broadcasted_iota(jnp.int64, shape, lead + d)
        base = base + (place * windows.stride[d] - windows.padding[d]) * step
    return base


def _flat(offset: Sizes, windows: Windows) -> int:
    return sum(o * s for o, s in zip(offset, windows.plane_stride(), strict=True))


def _lowest(dtype: Any) -> Any:
    return jnp.iinfo(dtype).min if is_integral(dtype) else -np.inf


def _max_unrolled(self: Any, windows: Windows) -> tuple[Any, Any]:
    padded = _padded(self, windows, _lowest(self.dtype))
    best: Any = None
    where: Any = None
    for offset in windows.offsets():
        candidate, place = _shifted(padded, windows, offset), _flat(offset, windows)
        if best is None:
            best, where = candidate, jnp.full(candidate.shape, place, jnp.int32)
            continue
        better = (candidate > best) | (candidate != candidate)
        best = jnp.where(better, candidate, best)
        where = jnp.where(better, jnp.int32(place), where)
    return best, _first_places(windows, best.shape) + where.astype(jnp.int64)


def _member_places(windows: Windows, d: int) -> Any:
    """Places along dimension `d` of each window's elements, shape (out, kernel).

    Those in the padding are replaced by one inside: the largest of a window doesn't change.
    """
    first = np.arange(windows.out[d]) * windows.stride[d] - windows.padding[d]
    places = first[:, None] + np.arange(windows.kernel[d]) * windows.dilation[d]
    inside = (places >= 0) & (places < windows.extent[d])
    some = np.take_along_axis(places, inside.argmax(1)[:, None], 1)
    return np.where(inside, places, some)


def max_over(self: Any, places: Sequence[Any]) -> tuple[Any, Any]:
    """Largest element and its flat position in the plane, for windows given by their places.

    Args:
        self: Shape (..., *plane).
        places: For each pooled dimension, the windows' places, shape (out, kernel).
    """
    lead, extent = self.ndim - len(places), self.shape[self.ndim - len(places) :]
    gathered, flat = self, np.arange(math.prod(extent)).reshape(extent)
    for d, place in enumerate(places):
        axis = 2 * d
        gathered = jnp.take(gathered, place, axis=lead + axis)
        flat = np.take(flat, place, axis=axis)
    outs = [place.shape[0] for place in places]
    order = [*range(0, 2 * len(places), 2), *range(1, 2 * len(places), 2)]
    members = math.prod(place.shape[1] for place in places)
    flat = flat.transpose(order).reshape(*outs, members)
    gathered = gathered.transpose([*range(lead), *(lead + d for d in order)])
    gathered = gathered.reshape(*self.shape[:lead], *outs, members)
    chosen = jnp.argmax(gathered, axis=-1)[..., None]
    index = jnp.take_along_axis(jnp.broadcast_to(flat, gathered.shape), chosen, -1)
    return jnp.take_along_axis(gathered, chosen, -1)[..., 0], index[..., 0]


def scatter_planes(grad: Any, indices: Any, size: Sizes, rank: int) -> Any:
    """Gradients added into planes of zeros at flat positions."""
    planes = math.prod(size[:-rank])
    rows = jnp.arange(planes)[:, None]
    zeros = jnp.zeros((planes, math.prod(size[-rank:])), grad.dtype)
    outs = (planes, math.prod(grad.shape[-rank:]))
    added = zeros.at[rows, indices.reshape(outs)].add(grad.reshape(outs))
    return added.reshape(size)


def _register_max(rank: int) -> None:
    @lowers(f"max_pool{rank}d_with_indices")
    def forward(
        ctx: Any,
        self: Any,
        kernel_size: Sizes,
        stride: Sizes = (),
        padding: Sizes = (0,),
        dilation: Sizes = (1,),
        ceil_mode: bool = False,
    ) -> Any:
        windows = windows_over(self, rank, ctx.size, kernel_size, stride, padding, dilation)
        if windows.volume <= _MAX_UNROLLED:
            return _max_unrolled(self, windows)
        return max_over(self, [_member_places(windows, d) for d in range(rank)])

    @lowers(f"max_pool{rank}d_with_indices_backward")
    def backward(
        ctx: Any,
        grad_output: Any,
        self: Any,
        kernel_size: Sizes,
        stride: Sizes,
        padding: Sizes,
        dilation: Sizes,
        ceil_mode: bool,
        indices: Any,
    ) -> Any:
        grad = cast(grad_output, ctx.opmath)
        shape = grad.shape
        windows = windows_over(self, rank, shape, kernel_size, stride, padding, dilation)
        if windows.volume > _MAX_UNROLLED:
            return scatter_planes(grad, indices, self.shape, rank)
        relative = indices - _first_places(windows, shape)
        total = jnp.zeros(self.shape, grad.dtype)
        for offset in windows.offsets():
            part = jnp.where(relative == _flat(offset, windows), grad, 0)
            total = total + _unshifted(part, windows, offset)
        return total


def _divisors(windows: Windows, include_pad: bool, override: int | None) -> Any:
    """How many elements each window counts, shaped like the windows."""
    if override is not None:
        return override
    counts: Any = 1
    for d, extent in enumerate(windows.extent):
        pad = windows.padding[d]
        first = np.arange(windows.out[d]) * windows.stride[d] - pad
        last = np.minimum(first + windows.kernel[d], extent + pad)
        if not include_pad:
            first, last = np.maximum(first, 0), np.minimum(last, extent)
        counts = np.multiply.outer(counts, last - first)
    return counts


def _average(self: Any, windows: Windows, divisors: Any) -> Any:
    padded = _padded(self, windows, 0)
    if windows.volume <= _MAX_UNROLLED:
        total: Any = None
        for offset in windows.offsets():
            part = _shifted(padded, windows, offset)
            total = part if total is None else total + part
    else:
        lead = (1,) * (self.ndim - len(windows.kernel))
        total = lax.reduce_window(
            padded, 0.0, lax.add, lead + windows.kernel, lead + windows.stride, "VALID"
        )
        total = lax.slice(total, (0,) * total.ndim, total.shape[: len(lead)] + windows.out)
    divisors = jnp.broadcast_to(jnp.asarray(divisors, total.dtype), total.shape)
    return lax.div(total, divisors)


def _register_average(rank: int) -> None:
    @lowers(f"avg_pool{rank}d")
    def forward(
        ctx: Any,
        self: Any,
        kernel_size: Sizes,
        stride: Sizes = (),
        padding: Sizes = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        windows = windows_over(self, rank, ctx.size, kernel_size, stride, padding)
        divisors = _divisors(windows, count_include_pad, divisor_override)
        return _average(cast(self, ctx.opmath), windows, divisors)

    @lowers(f"avg_pool{rank}d_backward")
    def backward(
        ctx: Any,
        grad_output: Any,
        self: Any,
        kernel_size: Sizes,
        stride: Sizes,
        padding: Sizes,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Any:
        grad = cast(grad_output, ctx.opmath)
        windows = windows_over(self, rank, grad.shape, kernel_size, stride, padding)
        divisors = _divisors(windows, count_include_pad, divisor_override)
        return transpose_of(lambda x: _average(x, windows, divisors), self.shape, grad)


for _rank in (2, 3):
    _register_max(_rank)
    _register_average(_rank)
