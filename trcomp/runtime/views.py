"""Strided reads and writes as XLA: slice, transpose, broadcast; a gather when none fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from trcomp.runtime.dtypes import TO_JAX
from trcomp.runtime.ir import Output, View
from trcomp.runtime.metrics import counters
from trcomp.runtime.storage import contiguous_stride, storage_order
from trcomp.runtime.windows import Window, find_window, is_injective, unravel


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
    window = find_window(view.size, view.stride, stored.size)
    start = window and window.start(view.offset)
    if window is None or start is None:
        counters.gathers += 1
        return stored.reshape(-1)[_indices(view)]
    part = stored.reshape(window.shape)
    if window.extent != window.shape:
        part = lax.slice(part, start, [a + n for a, n in zip(start, window.extent, strict=True)])
    return _seen(part, window, view)


def _seen(part: jax.Array, window: Window, view: View) -> jax.Array:
    """A window's elements in the view's own dimensions, those of stride 0 repeated."""
    part = part.reshape([view.size[d] for d in window.order])
    part = part.transpose([window.order.index(d) for d in sorted(window.order)])
    kept = set(window.order)
    part = part.reshape([n if d in kept else 1 for d, n in enumerate(view.size)])
    return jnp.broadcast_to(part, view.size)


def read_at(stored: jax.Array, view: View, offset: Any) -> jax.Array:
    """`read` of a view that begins at `offset`, a number that the graph computes with.

    Args:
        stored: What the storage holds.
        view: A window, as it would lie at the start.
        offset: Place of its first element.
    """
    flat = _as_dtype(stored.reshape(-1), TO_JAX[view.dtype])
    window = _window(view, flat.size)
    start = unravel(offset, window.shape)
    return _seen(lax.dynamic_slice(flat.reshape(window.shape), start, window.extent), window, view)


def write_at(stored: jax.Array, update: jax.Array, view: View, offset: Any) -> jax.Array:
    """`write` through a view that begins at `offset`, a number that the graph computes with."""
    flat = _as_dtype(stored.reshape(-1), TO_JAX[view.dtype])
    window = _window(view, flat.size)
    start = unravel(offset, window.shape)
    return _put(stored, flat, lax.convert_element_type(update, flat.dtype), window, start)


def _window(view: View, num_elements: int) -> Window:
    window = find_window(view.size, view.stride, num_elements)
    assert window is not None
    return window


def _put(
    stored: jax.Array, flat: jax.Array, update: jax.Array, window: Window, start: Sequence[Any]
) -> jax.Array:
    """What a storage holds after a window of it, which begins at `start`, is written."""
    kept = sorted(window.order)
    part = update.reshape([update.shape[d] for d in kept])
    part = part.transpose([kept.index(d) for d in window.order]).reshape(window.extent)
    if window.extent != window.shape:
        part = lax.dynamic_update_slice(flat.reshape(window.shape), part, start)
    return _as_dtype(part.reshape(-1), np.dtype(stored.dtype)).reshape(stored.shape)


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
    window = find_window(view.size, view.stride, flat.size)
    start = window and window.start(view.offset)
    if window is not None and start is not None and is_injective(view.size, view.stride):
        return _put(stored, flat, update, window, start)
    result = flat.at[_indices(view)].set(update)
    return _as_dtype(result, np.dtype(stored.dtype)).reshape(stored.shape)


def store(array: jax.Array, out: Output) -> jax.Array:
    """A node's result in the order in which its storage keeps it."""
    if out.stride == contiguous_stride(out.size):
        return array
    return array.transpose(storage_order(out.size, out.stride))
