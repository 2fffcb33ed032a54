"""Operators about storage rather than numbers: views, allocation, copies, fills, reads."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import torch

from trcomp.runtime import storage, views
from trcomp.runtime.device import DEVICE, NAME, check_index, is_on_device
from trcomp.runtime.dispatch import implement, implements
from trcomp.runtime.dtypes import TO_JAX, cast
from trcomp.runtime.ir import View
from trcomp.runtime.ops.registry import find, lowers
from trcomp.runtime.recording import Lifted, emit, put_back, record, write
from trcomp.runtime.storage import output
from trcomp.runtime.transfer import to_device, to_host, upload

_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


@lowers("trcomp::empty")
def _empty(ctx: Any, size: tuple[int, ...], dtype: torch.dtype) -> Any:
    return jnp.zeros(size, TO_JAX[dtype])


@lowers("trcomp::full")
def _full(ctx: Any, size: tuple[int, ...], value: Any) -> Any:
    return jnp.broadcast_to(cast(value, ctx.dtype), size)


@lowers("trcomp::copy")
def _copy(ctx: Any, self: Any) -> Any:
    return self


@lowers("trcomp::write")
def _write(ctx: Any, stored: Any, update: Any, view: View) -> Any:
    return views.write(stored, update, view)


@lowers("trcomp::write_at")
def _write_at(ctx: Any, stored: Any, update: Any, view: View, offset: Any) -> Any:
    return views.write_at(stored, update, view, offset.value)


@lowers("trcomp::expand")
def _expand(ctx: Any, self: Any, size: tuple[int, ...]) -> Any:
    return jnp.broadcast_to(self, size)


def _metadata_only(name: str) -> None:
    """PyTorch's own CPU kernel of a view operator edits sizes and strides and touches no memory."""
    op = find(name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return op.redispatch(_CPU, *args, **kwargs)

    implement(op, kernel)


for _name in ("view", "_reshape_alias", "unfold"):
    _metadata_only(_name)


@implements("as_strided")
def as_strided(
    self: torch.Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> torch.Tensor:
    """A view by explicit strides; the offset defaults to the tensor's own."""
    offset = self.storage_offset() if storage_offset is None else storage_offset
    return _as_strided.redispatch(_CPU, self, size, stride, offset)


_as_strided = find("as_strided")


@implements("as_strided_")
def as_strided_(
    self: torch.Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> torch.Tensor:
    """Lay the tensor itself out by explicit strides over its own storage."""
    offset = int(self.storage_offset()) if storage_offset is None else storage_offset
    view = View(tuple(size), tuple(stride), offset, self.dtype)
    return storage.relayout(self, self.untyped_storage(), view)


class _Counts:
    on_host = False

    @classmethod
    def holds(cls, dtype: torch.dtype | None) -> bool:
        return cls.on_host and dtype in (torch.int32, torch.int64)


@contextlib.contextmanager
def counts_on_host() -> Iterator[None]:
    """Have new tensors of integers made on the host.

    What torch's own C++ counts among ranks while it sets itself up is read at once: on the device
    each such count would be a graph of its own.
    """
    before, _Counts.on_host = _Counts.on_host, True
    try:
        yield
    finally:
        _Counts.on_host = before


@implements("empty.memory_format")
def empty(
    size: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """A new tensor. Its elements are zero: XLA has no uninitialised memory."""
    if device is not None:
        check_index(device)
    if _Counts.holds(dtype):
        return torch.empty(size, dtype=dtype)
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        return _allocate(tuple(size), None, dtype)
    like = torch.empty(size, device="meta", memory_format=memory_format)
    return _allocate(tuple(size), like.stride(), dtype)


@implements("empty_strided")
def empty_strided(
    size: list[int],
    stride: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """A new tensor with the given strides."""
    if device is not None:
        check_index(device)
    if _Counts.holds(dtype):
        return torch.empty_strided(size, stride, dtype=dtype)
    return _allocate(tuple(size), tuple(stride), dtype)


def _allocate(
    size: tuple[int, ...], stride: tuple[int, ...] | None, dtype: torch.dtype | None
) -> torch.Tensor:
    dtype = dtype or torch.get_default_dtype()
    if stride is None or storage.is_dense(size, stride):
        out = output(size, dtype, stride)
        return record("trcomp::empty", (size, dtype), [out])[0]
    reach = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if all(size) else 0
    flat = record("trcomp::empty", ((reach,), dtype), [output((reach,), dtype)])[0]
    return as_strided(flat, list(size), list(stride), 0)


@implements("fill_.Scalar")
def fill_scalar_(self: torch.Tensor, value: Any) -> torch.Tensor:
    """Set every element to a number."""
    return _fill(self, Lifted(value) if type(value) in (int, float) else value)


@implements("fill_.Tensor")
def fill_tensor_(self: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Set every element to the value of a 0-dim tensor."""
    if value.dim():
        raise RuntimeError(
            "fill_ only supports 0-dimension value tensor but got tensor with "
            f"{value.dim()} dimensions."
        )
    return _fill(self, value)


@implements("zero_")
def zero_(self: torch.Tensor) -> torch.Tensor:
    """Set every element to zero, a constant of the graph."""
    return _fill(self, False)


def _fill(self: torch.Tensor, value: Any) -> torch.Tensor:
    size, stride = tuple(self.size()), self.stride()
    out = output(size, self.dtype, stride if storage.is_dense(size, stride) else None)
    put_back(self, emit("trcomp::full", (size, value), [out]), 0)
    return self


@implements("copy_")
def copy_(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy, cast and broadcast between host and device, or on the device."""
    if not is_on_device(self):
        self.copy_(to_host(src))
        return self
    if not is_on_device(src):
        if src.device.type == "meta":
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")
        src = _upload_for(self, src)
    if self.is_conj():
        self.conj().copy_(src.conj())
        return self
    src = without_marks(src)
    if src.size() != self.size():
        src.expand(self.size())  # raises, here and now, if it does not fit
    if self.untyped_storage() is src.untyped_storage() and storage.view_of(self) == (
        storage.view_of(src)
    ):
        return self
    size, stride = tuple(self.size()), self.stride()
    out = output(size, self.dtype, stride if storage.is_dense(size, stride) else None)
    put_back(self, emit("trcomp::expand", (src, size), [out]), 0)
    return self


def _upload_for(target: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    """A host tensor on the device, in the target's dtype, ready to be copied into it."""
    if src.dtype != target.dtype and src.numel() <= target.numel():
        src = src.to(target.dtype)
    host = src.detach().contiguous()
    return storage.wrap(upload(host), output(tuple(host.size()), host.dtype))


@implements("_copy_from")
def _copy_from(src: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`copy_` with its operands the other way round; torch calls it for `.to` and `.cpu`."""
    if is_on_device(dst) and src.device.type == "cpu" and _fits(src, dst):
        storage.put(dst.untyped_storage(), upload(src.detach().contiguous()))
        return dst
    return copy_(dst, src, non_blocking)


def _fits(src: torch.Tensor, dst: torch.Tensor) -> bool:
    """Whether a host tensor's elements, row by row, are all of the device tensor's storage."""
    return (
        src.dtype == dst.dtype
        and src.size() == dst.size()
        and dst.is_contiguous()
        and storage.is_whole(dst)
    )


@implements("_copy_from_and_resize")
def _copy_from_and_resize(src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    dst.resize_(src.size())
    return _copy_from(src, dst)


@implements("_to_copy")
def _to_copy(
    self: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """`.to`: another dtype on the device, or a copy on the host."""
    target = DEVICE if device is None else device
    if not is_on_device(self):
        if _Counts.holds(self.dtype):
            return self.to(dtype or self.dtype, copy=True)
        return to_device(self if dtype is None else self.to(dtype), memory_format=memory_format)
    if target.type == NAME:
        return _clone_as(self, dtype or self.dtype, memory_format)
    if target.type == "meta":
        return torch.empty_strided(
            self.size(), self.stride(), dtype=dtype or self.dtype, device="meta"
        )
    host = to_host(self)
    return host.to(device=target, dtype=dtype or self.dtype)


@implements("clone")
def clone(self: torch.Tensor, *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """A copy of its own."""
    return _clone_as(self, self.dtype, memory_format)


def _clone_as(
    self: torch.Tensor, dtype: torch.dtype, memory_format: torch.memory_format | None
) -> torch.Tensor:
    TO_JAX[dtype]  # what XLA lacks is refused here, at the caller's line
    self = without_marks(self)
    out = output(tuple(self.size()), dtype, storage.stride_as(self, memory_format))
    return record("trcomp::copy", (self,), [out])[0]


@implements("lift_fresh_copy")
def lift_fresh_copy(self: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor that a traced graph holds as a constant."""
    return clone(self)


@implements("copy")
def copy(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """What `self` would hold after `self.copy_(src)`."""
    return torch.empty_like(self).copy_(src, non_blocking)


def without_marks(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers that a tensor stands for: torch marks `x.conj()` and its `.imag`, unread."""
    if tensor.is_conj():
        return torch.ops.aten._conj_physical(tensor.conj())
    return torch._neg_view(tensor).neg() if tensor.is_neg() else tensor


@implements("_local_scalar_dense")
def _local_scalar_dense(self: torch.Tensor) -> Any:
    """`.item()`: computes what the value needs and waits for it."""
    return to_host(self).item()


@implements("record_stream")
def record_stream(self: torch.Tensor, s: torch.Stream) -> None:
    """Nothing: no memory is reused before what was recorded to read it has run."""


@implements("set_.source_Storage_storage_offset")
def set_source_storage_offset_(
    self: torch.Tensor,
    source: torch.UntypedStorage,
    storage_offset: int,
    size: list[int],
    stride: list[int] = [],  # noqa: B006 - aten's own default
) -> torch.Tensor:
    """Point a tensor at a place in a storage."""
    steps = tuple(stride) if len(stride) == len(size) else storage.contiguous_stride(tuple(size))
    return storage.relayout(self, source, View(tuple(size), steps, storage_offset, self.dtype))


@implements("set_.source_Storage")
def set_source_storage_(self: torch.Tensor, source: torch.UntypedStorage) -> torch.Tensor:
    """Point a tensor at the whole of a storage, as one dimension."""
    count = source.nbytes() // self.element_size()
    return storage.relayout(self, source, View((count,), (1,), 0, self.dtype))


@implements("set_.source_Tensor")
def set_source_tensor_(self: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Make a tensor share another's storage and layout."""
    return storage.relayout(self, source.untyped_storage(), storage.view_of(source))


@implements("set_")
def set_(self: torch.Tensor) -> torch.Tensor:
    """Make a tensor empty."""
    return set_source_tensor_(self, empty([0], dtype=self.dtype))


@implements("resize_")
def resize_(
    self: torch.Tensor, size: list[int], *, memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    """Change the size in place; elements that stay keep their value, new ones are zero.

    A storage that must grow is replaced, so views made before no longer share it.
    """
    target = tuple(size)
    if tuple(self.size()) == target:
        return self
    view = View(target, storage.contiguous_stride(target), int(self.storage_offset()), self.dtype)
    held = self.untyped_storage()
    needed = (math.prod(target) + view.offset) * self.element_size()
    if needed <= held.nbytes():
        return storage.relayout(self, held, view)
    old = held.nbytes() // self.element_size()
    grown = empty([view.offset + math.prod(target)], dtype=self.dtype)
    if old:
        write(as_strided(grown, [old], [1], 0), as_strided(self, [old], [1], 0))
    return storage.relayout(self, grown.untyped_storage(), view)
