"""Storages in files: tensors that share one are written once and share it again when read.

torch asks the device's allocator for the memory of a storage that it makes by itself, as
`torch.load(map_location="xla")` does. The device has none to offer from Python, so
`torch.UntypedStorage(size, device="xla")` is answered here, with zeros that the caller overwrites.

torch writes a tensor on a device named "xla" as a host copy of its own, which would untie tied
weights and store them twice. Tensors of this device are written as those of any other, by storage.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch._utils import _rebuild_tensor_v2
from torch.utils.hooks import warn_if_has_hooks

from trcomp.runtime.bodies import is_region
from trcomp.runtime.device import NAME, is_on_device
from trcomp.runtime.dtypes import TO_TORCH
from trcomp.runtime.ir import Node, Value, View
from trcomp.runtime.storage import contiguous_stride, relayout

_new = torch.UntypedStorage.__new__
_clone_bytes: Any = torch.UntypedStorage.clone
_reduce_alone = torch.Tensor._reduce_ex_internal
_reduce_storage = torch.storage.TypedStorage.__reduce__


def _make(cls: type[torch.UntypedStorage], *args: Any, **kwargs: Any) -> torch.UntypedStorage:
    device = kwargs.get("device")
    if device is None or torch.device(device).type != NAME:
        return _new(cls, *args, **kwargs)
    if args and not isinstance(args[0], int):
        return torch.tensor(args[0], dtype=torch.uint8, device=device).untyped_storage()
    size = args[0] if args else 0
    return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()


def _clone(self: Any) -> torch.UntypedStorage:
    """A copy that holds what this does; torch would make it one of bytes.

    `copy.deepcopy` asks for it. Bytes are another input of a step than numbers: a copy of a model
    would have its steps compiled again when they have written it for the first time.
    """
    view = _extent(self.value) if self.device.type == NAME else None
    if view is None:
        return _clone_bytes(self)
    whole = relayout(torch.empty(0, dtype=view.dtype, device=NAME), self, view)
    with torch.no_grad():
        return whole.clone().untyped_storage()


def _extent(value: Value) -> View | None:
    """All that a storage holds as a tensor; None where that is not known."""
    source, index = value.source()
    while isinstance(source, Node):
        out = source.signature.outputs[index]
        if out is not None:
            return View(out.size, out.stride, 0, out.dtype)
        if is_region(source.signature):
            return None
        source, index = source.sources[0]  # What was written into.
    aval: Any = source.aval
    size, dtype = aval
    return View(size, contiguous_stride(size), 0, TO_TORCH[dtype])


def _reduce_shared(self: torch.Tensor, protocol: Any) -> Any:
    """How a tensor is written: its place in a storage, which a file holds once."""
    new_dtype = self.dtype in torch.storage._new_dtypes()
    if not is_on_device(self) or new_dtype or self.is_conj() or self.is_neg():
        return _reduce_alone(self, protocol)
    warn_if_has_hooks(self)
    held = torch.storage.TypedStorage(
        wrap_storage=self.untyped_storage(), dtype=self.dtype, _internal=True
    )
    place = (int(self.storage_offset()), tuple(self.size()), self.stride())
    return _rebuild_tensor_v2, (held, *place, self.requires_grad, OrderedDict())


def _to_device(storage: torch.storage.TypedStorage) -> torch.storage.TypedStorage:
    return torch.storage.TypedStorage(
        wrap_storage=storage._untyped_storage.to(device=NAME), dtype=storage.dtype, _internal=True
    )


def _reduce_typed_storage(self: torch.storage.TypedStorage) -> Any:
    """How a storage is pickled where no file keeps storages apart: by way of the host."""
    if self._untyped_storage.device.type != NAME:
        return _reduce_storage(self)
    host = torch.storage.TypedStorage(
        wrap_storage=self._untyped_storage.cpu(), dtype=self.dtype, _internal=True
    )
    return _to_device, (host,)


def register() -> None:
    """Answer for storages on the device."""
    setattr(torch.UntypedStorage, "clone", _clone)  # noqa: B010
    torch.UntypedStorage.__new__ = _make  # type: ignore[method-assign, assignment]
    torch.Tensor._reduce_ex_internal = _reduce_shared  # type: ignore[method-assign]
    torch.storage.TypedStorage.__reduce__ = _reduce_typed_storage  # type: ignore[method-assign]
