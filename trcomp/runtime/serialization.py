"""Storages that torch makes by itself, as `torch.load(map_location="xla")` does.

torch asks the device's allocator for their memory. The device has none to offer from Python, so
`torch.UntypedStorage(size, device="xla")` is answered here, with zeros that the caller overwrites.
"""

from __future__ import annotations

from typing import Any

import torch

from trcomp.runtime.device import NAME

_new = torch.UntypedStorage.__new__


def _make(cls: type[torch.UntypedStorage], *args: Any, **kwargs: Any) -> torch.UntypedStorage:
    device = kwargs.get("device")
    if device is None or torch.device(device).type != NAME:
        return _new(cls, *args, **kwargs)
    if args and not isinstance(args[0], int):
        return torch.tensor(args[0], dtype=torch.uint8, device=device).untyped_storage()
    size = args[0] if args else 0
    return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()


def register() -> None:
    """Answer for storages on the device."""
    torch.UntypedStorage.__new__ = _make  # type: ignore[method-assign, assignment]
