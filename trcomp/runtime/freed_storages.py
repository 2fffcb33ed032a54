"""Storages that are freed and filled again, as FSDP does with the parameters it has gathered."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from trcomp.errors import UnsupportedError
from trcomp.runtime import storage
from trcomp.runtime.device import NAME
from trcomp.runtime.ir import Value
from trcomp.runtime.recording import emit

_torch_resize: Any = torch.UntypedStorage.resize_


@wraps(_torch_resize)
def _resize(self: Any, size: int) -> Any:
    """Drop what a storage holds (`resize_(0)`); it keeps its size, and reads as zeros until filled.

    Raises:
        UnsupportedError: Another size.
    """
    if self.device.type != NAME:
        return _torch_resize(self, size)
    if size not in (0, self.nbytes()):
        raise UnsupportedError(
            f"a storage of {self.nbytes()} bytes on the device was to be resized to {size}; "
            f"allowed: 0, which frees it, and {self.nbytes()}.",
            "Make a new tensor.",
        )
    if size == 0 and self.nbytes():
        storage.put(self, _nothing(self.nbytes()))
    return self


def _nothing(num_bytes: int) -> Value:
    """A value that nobody computes unless someone reads it."""
    made = storage.output((num_bytes,), torch.uint8)
    return Value.unasked(emit("trcomp::empty", (made.size, made.dtype), [made]), 0)


def register() -> None:
    """Answer for storages of the device."""
    setattr(torch.UntypedStorage, "resize_", _resize)  # noqa: B010
