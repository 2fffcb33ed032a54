"""Checkpoints: those written on GPUs are read, and those written here read there."""

from __future__ import annotations

from typing import Any

import torch

from trcomp.compat.cuda.names import CUDA, index, own
from trcomp.runtime.device import DEVICE, Process

_BEFORE_CUDA_S_OWN = 15


def _tag(storage: Any) -> str | None:
    """What a storage on the device is called in a file: what the script calls it."""
    if storage.device != DEVICE or Process.shown is None:
        return None
    return f"{CUDA}:{index()}"


def _read(storage: Any, location: str) -> Any:
    """A storage that was on a GPU, on the device."""
    return storage.to(device=own(location)) if location.startswith(CUDA) else None


def register() -> None:
    """Tag storages and read tagged ones."""
    torch.serialization.register_package(_BEFORE_CUDA_S_OWN, _tag, _read)
