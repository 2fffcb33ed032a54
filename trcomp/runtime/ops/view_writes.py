"""Views as functions: copies, writes through them, and their backwards, which write into zeros."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from trcomp.runtime import views
from trcomp.runtime.dispatch import implements
from trcomp.runtime.dtypes import TO_TORCH, cast
from trcomp.runtime.ir import View
from trcomp.runtime.ops.registry import find, lowers


def _slices(ndim: int, dim: int, part: Any) -> tuple[Any, ...]:
    return (slice(None),) * (dim % ndim) + (part,)


@lowers("select_scatter")
def select_scatter(ctx: Any, self: Any, src: Any, dim: int, index: int) -> Any:
    return self.at[_slices(self.ndim, dim, index)].set(cast(src, self.dtype))


@lowers("slice_scatter")
def slice_scatter(
    ctx: Any,
    self: Any,
    src: Any,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    return self.at[_slices(self.ndim, dim, slice(start, end, step))].set(cast(src, self.dtype))


@lowers("select_backward")
def select_backward(
    ctx: Any, grad_output: Any, input_sizes: tuple[int, ...], dim: int, index: int
) -> Any:
    axis = dim % len(input_sizes)
    before = index % input_sizes[axis]
    grad = jnp.expand_dims(grad_output, axis)
    return _pad_axis(grad, axis, before, input_sizes[axis] - before - 1, 0)


@lowers("slice_backward")
def slice_backward(
    ctx: Any,
    grad_output: Any,
    input_sizes: tuple[int, ...],
    dim: int,
    start: int,
    end: int,
    step: int,
) -> Any:
    axis = dim % len(input_sizes)
    extent, count = input_sizes[axis], grad_output.shape[axis]
    if not count:
        return jnp.zeros(input_sizes, grad_output.dtype)
    first = slice(start, end, step).indices(extent)[0]
    last = first + (count - 1) * step
    return _pad_axis(grad_output, axis, first, extent - last - 1, step - 1)


def _pad_axis(array: Any, axis: int, before: int, after: int, between: int) -> Any:
    config = [(before, after, between) if d == axis else (0, 0, 0) for d in range(array.ndim)]
    return lax.pad(array, jnp.zeros((), array.dtype), config)


@lowers("diagonal_scatter")
def diagonal_scatter(
    ctx: Any, self: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Any:
    # torch knows where the diagonal of a row-major tensor lies.
    like = torch.empty(self.shape, device="meta").diagonal(offset, dim1, dim2)
    return _write(self, src, tuple(like.size()), like.stride(), int(like.storage_offset()))


@lowers("diagonal_backward")
def diagonal_backward(
    ctx: Any, grad_output: Any, input_sizes: tuple[int, ...], offset: int, dim1: int, dim2: int
) -> Any:
    zeros = jnp.zeros(input_sizes, grad_output.dtype)
    return diagonal_scatter(ctx, zeros, grad_output, offset, dim1, dim2)


@lowers("as_strided_scatter")
def as_strided_scatter(
    ctx: Any,
    self: Any,
    src: Any,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    storage_offset: int | None = None,
) -> Any:
    return _write(self, src, size, stride, storage_offset or 0)


def _write(self: Any, src: Any, size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> Any:
    """`self`, which is row-major, with `src` written through strides."""
    view = View(size, stride, offset, TO_TORCH[np.dtype(self.dtype)])
    return views.write(self, jnp.broadcast_to(cast(src, self.dtype), size), view)


@lowers("unfold_backward")
def unfold_backward(
    ctx: Any, grad_in: Any, input_sizes: tuple[int, ...], dim: int, size: int, step: int
) -> Any:
    if not input_sizes:
        return grad_in.reshape(())
    axis = dim % len(input_sizes)
    windows = jnp.moveaxis(grad_in, -1, axis + 1)
    count = windows.shape[axis]
    places = np.arange(count)[:, None] * step + np.arange(size)
    flat = windows.reshape(*windows.shape[:axis], count * size, *windows.shape[axis + 2 :])
    zeros = jnp.zeros(input_sizes, grad_in.dtype)
    return zeros.at[_slices(len(input_sizes), axis, places.reshape(-1))].add(flat)


def _register_copy(view: str, copy: str) -> None:
    """The form of a view operator that returns a copy instead of an alias."""
    op = find(view)

    @implements(copy)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        keywords = {name: value for name, value in kwargs.items() if name != "memory_format"}
        made = op(*args, **keywords)
        return made.clone() if isinstance(made, torch.Tensor) else [part.clone() for part in made]


_VIEWS = (
    "as_strided diagonal expand permute select.int slice.Tensor squeeze squeeze.dim squeeze.dims "
    "t transpose.int unbind.int unfold unsqueeze view view.dtype split.Tensor"
)
for _name in _VIEWS.split():
    _base, _, _overload = _name.partition(".")
    _register_copy(_name, f"{_base}_copy.{_overload}" if _overload else f"{_base}_copy")
_register_copy("narrow", "narrow_copy")
