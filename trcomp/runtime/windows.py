"""Views that are rectangular parts of a storage in some shape: what XLA slices, not gathers."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple


class Window(NamedTuple):
    """A view, wherever it begins, as a slice of the flat storage seen in another shape.

    `storage.reshape(shape)[start : start + extent]`, without the axes of extent one, holds the
    view's elements; `order` lists the view's own dimensions in the order of those axes.
    """

    shape: tuple[int, ...]
    extent: tuple[int, ...]
    order: tuple[int, ...]

    def start(self, offset: int) -> tuple[int, ...] | None:
        """Where the slice begins; None if a dimension would run across the end of the next."""
        start = unravel(offset, self.shape)
        for first, count, length in zip(start, self.extent, self.shape, strict=True):
            if first + count > length:
                return None
        return start


@lru_cache(maxsize=1 << 14)
def find_window(size: tuple[int, ...], stride: tuple[int, ...], num_elements: int) -> Window | None:
    """The window that a view of this size and these strides is, or None if it is not one.

    A view is a window if its strides, largest first, divide one another and the storage, and no
    dimension is longer than the next larger stride. Dimensions that follow on without a gap count
    as one: a row of 196 may be seen as 14 by 14 where the storage's rows have 197.
    """
    real = [d for d, (n, s) in enumerate(zip(size, stride, strict=True)) if n != 1 and s]
    order = sorted(real, key=lambda d: -stride[d])
    left = num_elements
    shape: list[int] = []
    extent: list[int] = []
    for count, step in _runs([(size[d], stride[d]) for d in order]):
        if step <= 0 or left % step or count > left // step:
            return None
        shape.append(left // step)
        extent.append(count)
        left = step
    return Window((*shape, left), (*extent, 1), tuple(order))


def _runs(dimensions: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(extent, stride) per dimension, outermost first, joined where one follows on the next."""
    runs: list[tuple[int, int]] = []
    for count, step in dimensions:
        if runs and runs[-1][1] == step * count:
            runs[-1] = (runs[-1][0] * count, step)
        else:
            runs.append((count, step))
    return runs


def unravel(offset: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index, in an array of this shape, of a place in its row-major order.

    `offset` may be a number that a graph computes with; so are the indices then.
    """
    index: list[int] = []
    for length in reversed(shape[1:]):
        index.append(offset % length)
        offset = offset // length
    return (offset, *reversed(index))


def is_injective(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether no element of a window is seen repeatedly, along a dimension of stride 0."""
    return all(step or extent == 1 for extent, step in zip(size, stride, strict=True))
