"""`torch_xla.utils.serialization` (xser): data in a file, each device tensor in one of its own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch

import trcomp.runtime as rt

from .._missing import missing

__getattr__ = missing(__name__)


class TensorReference(NamedTuple):
    """Stands in the file for a tensor: the number of its own."""

    tid: int


def save(
    data: Any,
    path: str | os.PathLike[str],
    master_only: bool = True,
    global_master: bool = False,
) -> None:
    """Write data, its device tensors into the folder `<path>.tensors`; every rank must call it.

    Args:
        data: Nested lists, tuples and dicts of anything that pickles.
        path: The file.
        master_only: Whether the master alone writes.
        global_master: Whether the master is the job's rank 0, or each host's first rank.
    """
    rt.settle()
    master = rt.rank() if global_master else rt.local_rank()
    if master_only and master != 0:
        return
    folder = _folder(path)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    written = 0

    def write(tensor: torch.Tensor) -> TensorReference:
        nonlocal written
        torch.save(tensor.detach().cpu(), folder / f"tensor_{written}.pt")
        written += 1
        return TensorReference(written - 1)

    device = rt.device()
    is_device = lambda item: isinstance(item, torch.Tensor) and item.device == device  # noqa: E731
    torch.save(_replaced(data, is_device, write), path)


def load(path: str | os.PathLike[str]) -> Any:
    """What `save` wrote, tensors on the CPU. The file is a pickle: load only what you trust."""
    folder = _folder(path)

    def read(reference: TensorReference) -> Any:
        return torch.load(folder / f"tensor_{reference.tid}.pt", weights_only=True)

    data = torch.load(path, weights_only=False)
    return _replaced(data, lambda item: isinstance(item, TensorReference), read)


def _folder(path: str | os.PathLike[str]) -> Path:
    return Path(f"{os.fspath(path)}.tensors")


def _replaced(data: Any, chosen: Any, replace: Any) -> Any:
    """Nested data of the same types with the chosen items replaced."""
    if chosen(data):
        return replace(data)
    if isinstance(data, dict):
        items = [(key, _replaced(item, chosen, replace)) for key, item in data.items()]
        made = type(data)()
        made.update(items)
        return made
    if isinstance(data, list | tuple):
        items_ = [_replaced(item, chosen, replace) for item in data]
        return type(data)(*items_) if hasattr(data, "_fields") else type(data)(items_)
    return data
