"""Device tensors: plain torch tensors on `xla:0` whose storage carries a Value and no memory.

PyTorch keeps a storage's Python object alive as long as the storage itself, so what hangs on it is
seen by every view, `detach`, `Parameter` and saved activation, as memory is on other devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any, cast

import torch

from trcomp.errors import DeviceError
from trcomp.runtime.device import DEVICE
from trcomp.runtime.ir import Output, Value, View

_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_create = torch._C._acc.create_empty_tensor
_make_storage = torch._C._construct_storage_from_data_pointer
_set = torch.ops.aten.set_.source_Storage_storage_offset._handle.redispatch_boxed


MAX_DIMS = 64
"""As numpy's arrays have, in which values travel."""


def contiguous_stride(size: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, as torch computes them (an extent of 0 counts as 1)."""
    stride: list[int] = []
    step = 1
    for extent in reversed(size):
        stride.append(step)
        step *= max(extent, 1)
    return tuple(reversed(stride))


@cache
def itemsize(dtype: torch.dtype) -> int:
    """Bytes per element."""
    return dtype.itemsize


@lru_cache(maxsize=1 << 16)
def output(
    size: tuple[int, ...], dtype: torch.dtype, stride: tuple[int, ...] | None = None
) -> Output:
    """The description of a dense tensor; contiguous unless strides are given.

    Raises:
        RuntimeError: It has more dimensions than XLA's arrays have on the host.
    """
    size = tuple(size)
    if len(size) > MAX_DIMS:
        raise RuntimeError(
            f"only tensors with up to {MAX_DIMS} dims are supported, but got {len(size)}"
        )
    return Output(
        size,
        contiguous_stride(size) if stride is None else tuple(stride),
        dtype,
        math.prod(size) * itemsize(dtype),
    )


class _Addresses:
    """Addresses that no memory has, one range per storage.

    Scripts tell storages apart by `data_ptr()` (safetensors and accelerate do, to find tied
    weights), and torch refuses to name the pointer of a storage that has none.
    """

    _next = 1 << 60

    @classmethod
    def take(cls, num_bytes: int) -> int:
        address = cls._next
        cls._next = address + (num_bytes | 63) + 1
        return address


def next_address() -> int:
    """Storages made from here on have this address, or a higher one."""
    return _Addresses._next


def wrap(value: Value, out: Output) -> torch.Tensor:
    """A new tensor over a new storage that carries `value`."""
    tensor = _create(out.size, out.dtype)
    storage: Any = _make_storage(_Addresses.take(out.num_bytes), DEVICE, out.num_bytes)
    _set(_CPU, tensor, storage, 0, out.size, out.stride)
    storage.value = value
    return tensor


def over(value: Value, num_bytes: int) -> Any:
    """A new storage that carries `value`."""
    storage: Any = _make_storage(_Addresses.take(num_bytes), DEVICE, num_bytes)
    storage.value = value
    return storage


_overwritten: dict[int, tuple[Any, Value]] | None = None


def put(held: Any, value: Value) -> None:
    """Have a storage hold another value."""
    if _overwritten is not None:
        _overwritten.setdefault(held._cdata, (held, held.value))
    held.value = value


@contextmanager
def restored() -> Iterator[dict[int, tuple[Any, Value]]]:
    """Storages get back at the end what they held; yields those written so far, and that."""
    global _overwritten
    before, _overwritten = _overwritten, {}
    written = _overwritten
    try:
        yield written
    finally:
        _overwritten = before
        for held, value in written.values():
            held.value = value


def value_of(tensor: torch.Tensor) -> Value:
    """What the tensor's storage holds.

    Raises:
        DeviceError: The storage was not made by trcomp.
    """
    try:
        return cast(Value, tensor.untyped_storage().value)  # type: ignore[attr-defined]
    except AttributeError:
        raise DeviceError(
            f"a tensor of shape {tuple(tensor.shape)} on {tensor.device} has no value: "
            "its storage was not made by trcomp."
        ) from None


def view_of(tensor: torch.Tensor) -> View:
    """How the tensor lies over its storage."""
    return View(tuple(tensor.size()), tensor.stride(), int(tensor.storage_offset()), tensor.dtype)


def is_dense(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether the strides are those of a row-major tensor with its dimensions permuted."""
    expected = 1
    for step, extent in sorted((s, n) for n, s in zip(size, stride, strict=True) if n != 1):
        if step != expected:
            return False
        expected *= extent
    return True


@lru_cache(maxsize=1 << 14)
def dense_stride(size: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a copy that preserves the format: the same if they are dense."""
    if is_dense(size, stride):
        return stride
    return torch.empty_like(torch.empty_strided(size, stride, device="meta")).stride()


def stride_as(tensor: torch.Tensor, memory_format: torch.memory_format | None) -> tuple[int, ...]:
    """The strides of a copy of `tensor`: its own if they are dense, or those asked for."""
    size = tuple(tensor.size())
    if memory_format in (None, torch.preserve_format):
        return dense_stride(size, tensor.stride())
    return torch.empty(size, device="meta", memory_format=memory_format).stride()


def storage_order(size: tuple[int, ...], stride: tuple[int, ...]) -> list[int]:
    """The dimensions of a dense tensor in the order in which its storage nests them.

    Where they nest row by row they stay as they are, those of extent 1 too, whose place is open.
    """
    if tuple(stride) == contiguous_stride(tuple(size)):
        return [*range(len(size))]
    return sorted(range(len(size)), key=lambda d: (-stride[d], size[d], d))


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether the tensor covers each element of its storage exactly once."""
    if tensor.storage_offset() or tensor.untyped_storage().nbytes() != tensor.nbytes:
        return False
    return tensor.is_contiguous() or is_dense(tuple(tensor.size()), tensor.stride())


def assign(dst: torch.Tensor, src: torch.Tensor) -> None:
    """Make `dst`'s storage hold what `src`'s holds; both must be whole and alike in layout."""
    put(dst.untyped_storage(), src.untyped_storage().value)  # type: ignore[attr-defined]


def relayout(tensor: torch.Tensor, storage: torch.UntypedStorage, view: View) -> torch.Tensor:
    """Point an existing tensor at another storage or another place in its own."""
    _set(_CPU, tensor, storage, view.offset, view.size, view.stride)
    return tensor
