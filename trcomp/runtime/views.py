"""Strided reads and writes as XLA: slice, transpose, broadcast; a gather when none fits."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from trcomp.runtime.dtypes import TO_JAX
from trcomp.runtime.ir import Output, View
from trcomp.runtime.metrics import counters
from trcomp.runtime.storage import contiguous_stride, storage_order


class Window(NamedTuple):
    """A view as a rectangular slice of the flat storage seen in another shape.

    `storage.reshape(shape)[start:stop]`, without the axes of extent one, holds the view's elements;
    `order` lists the view's own dimensions in the order of those axes.
    """

    shape: tuple[int, ...]
    start: tuple[int, ...]
    stop: tuple[int, ...]
    order: tuple[int, ...]


def find_window(view: View, num_elements: int) -> Window | None:
    """The window that a view is, or None if it is not one.

    A view is a window if its strides, largest first, divide one another and the storage, and no
    dimension runs across the end of the next larger one. Dimensions that follow on without a gap
    count as one: a row of 196 may be seen as 14 by 14 where the storage's rows have 197.
    """
    real = [d for d, (n, s) in enumerate(zip(view.size, view.stride, strict=True)) if n != 1 and s]
    order = sorted(real, key=lambda d: -view.stride[d])
    left, remaining = num_elements, view.offset
    shape: list[int] = []
    start: list[int] = []
    stop: list[int] = []
    for count, step in _runs([(view.size[d], view.stride[d]) for d in order]):
        if step <= 0 or left % step:
            return None
        extent, (first, remaining) = left // step, divmod(remaining, step)
        if first + count > extent:
            return None
        shape.append(extent)
        start.append(first)
        stop.append(first + count)
        left = step
    if remaining >= left:
        return None
    return Window((*shape, left), (*start, remaining), (*stop, remaining + 1), tuple(order))


def _runs(dimensions: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(extent, stride) per dimension, outermost first, joined where one follows on the next."""
    runs: list[tuple[int, int]] = []
    for count, step in dimensions:
        if runs and runs[-1][1] == step * count:
            runs[-1] = (runs[-1][0] * count, step)
        else:
            runs.append((count, step))
    return runs


def _indices(view: View) -> np.ndarray[Any, Any]:
    """Flat position of each element of a view, shape `view.size`, int64."""
    index = np.full(view.size, view.offset, dtype=np.int64)
    for d, (extent, step) in enumerate(zip(view.size, view.stride, strict=True)):
        shape = [1] * len(view.size)
        shape[d] = extent
        index = index + (np.arange(extent, dtype=np.int64) * step).reshape(shape)
    return index


def _as_dtype(array: jax.Array, dtype: np.dtype[Any]) -> jax.Array:
    """Reinterpret the bytes of a flat array, as `Tensor.view(dtype)` does."""
    if array.dtype == dtype:
        return array
    if np.dtype(dtype).kind == "c" or np.dtype(array.dtype).kind == "c":
        return _as_complex(array, dtype)
    if array.dtype == np.bool_:
        array = array.astype(np.uint8)
    if dtype == np.bool_:
        return _as_dtype(array, np.dtype(np.uint8)) != 0
    wide, narrow = np.dtype(dtype).itemsize, np.dtype(array.dtype).itemsize
    if wide > narrow:
        array = array.reshape(-1, wide // narrow)
    return lax.bitcast_convert_type(array, dtype).reshape(-1)


def _as_complex(array: jax.Array, dtype: np.dtype[Any]) -> jax.Array:
    if np.dtype(array.dtype).kind == "c":
        real = jnp.stack([lax.real(array), lax.imag(array)], -1).reshape(-1)
        return _as_dtype(real, dtype)
    part = np.dtype(np.float32 if dtype == np.complex64 else np.float64)
    pairs = _as_dtype(array, part).reshape(-1, 2)
    return lax.complex(pairs[:, 0], pairs[:, 1])


def read(stored: jax.Array, view: View) -> jax.Array:
    """The elements that a view sees, as an array of the view's size and dtype.

    Args:
        stored: What the storage holds, in any shape; its row-major order is the storage's.
        view: Where the tensor lies, in elements of its own dtype.
    """
    dtype = TO_JAX[view.dtype]
    count = math.prod(view.size)
    if not count:
        return jnp.zeros(view.size, dtype)
    if stored.dtype != dtype:
        stored = _as_dtype(stored.reshape(-1), dtype)
    if not view.offset and count == stored.size and view.stride == contiguous_stride(view.size):
        return stored.reshape(view.size)
    window = find_window(view, stored.size)
    if window is None:
        counters.gathers += 1
        return stored.reshape(-1)[_indices(view)]
    part = stored.reshape(window.shape)
    if any(window.start) or window.stop != window.shape:
        part = lax.slice(part, window.start, window.stop)
    part = part.reshape([view.size[d] for d in window.order])
    part = part.transpose([window.order.index(d) for d in sorted(window.order)])
    kept = set(window.order)
    part = part.reshape([n if d in kept else 1 for d, n in enumerate(view.size)])
    return jnp.broadcast_to(part, view.size)


def read_block(stored: jax.Array, view: View, offset: Any) -> jax.Array:
    """`read` of a view that begins at `offset`, a number that the graph computes with.

    Args:
        stored: What the storage holds.
        view: A row-major block or a broadcast of one, as it would lie at the start.
        offset: Place of its first element.
    """
    count = math.prod(n for n, step in zip(view.size, view.stride, strict=True) if step)
    flat = _as_dtype(stored.reshape(-1), TO_JAX[view.dtype])
    return read(lax.dynamic_slice(flat, (offset,), (count,)), view)


def write_block(stored: jax.Array, update: jax.Array, dtype: torch.dtype, offset: Any) -> Any:
    """`stored` with the elements from `offset` on replaced by `update`."""
    flat = _as_dtype(stored.reshape(-1), TO_JAX[dtype])
    part = lax.convert_element_type(update, TO_JAX[dtype]).reshape(-1)
    result = lax.dynamic_update_slice(flat, part, (offset,))
    return _as_dtype(result, np.dtype(stored.dtype)).reshape(stored.shape)


def write(stored: jax.Array, update: jax.Array, view: View) -> jax.Array:
    """`stored` with the elements that a view sees replaced by `update`.

    Args:
        stored: What the storage holds.
        update: New elements, in the view's size.
        view: Where they go; no two of its elements may share a place.
    """
    if not math.prod(view.size):
        return stored
    dtype = TO_JAX[view.dtype]
    update = lax.convert_element_type(update, dtype)
    flat = _as_dtype(stored.reshape(-1), dtype)
    window = find_window(view, flat.size)
    if window is None or math.prod(view.size) != math.prod(view.size[d] for d in window.order):
        result = flat.at[_indices(view)].set(update)
    else:
        part = update.reshape([view.size[d] for d in sorted(window.order)])
        part = part.transpose([sorted(window.order).index(d) for d in window.order])
        extent = [b - a for a, b in zip(window.start, window.stop, strict=True)]
        part = part.reshape(extent)
        whole = tuple(extent) == window.shape
        base = flat.reshape(window.shape)
        result = part if whole else lax.dynamic_update_slice(base, part, window.start)
    return _as_dtype(result.reshape(-1), np.dtype(stored.dtype)).reshape(stored.shape)


def store(array: jax.Array, out: Output) -> jax.Array:
    """A node's result in the order in which its storage keeps it."""
    if out.stride == contiguous_stride(out.size):
        return array
    return array.transpose(storage_order(out.size, out.stride))
