"""Batches as data loaders give them: the same structure with other tensors, and their size."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence


def map_tensors(batch: Any, move: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A batch of the same types with `move` applied to each of its tensors.

    Tuples, named tuples, lists, dicts and their subclasses, `UserDict`s such as transformers'
    `BatchEncoding`, and dataclasses keep their type, their order and what else they carry. What has
    `get_tensors` and `from_tensors` (torch_xla's `DataWrapper`) takes itself apart and makes the
    batch. The batch itself is left as it was; anything without tensors is passed on.
    """
    if isinstance(batch, torch.Tensor):
        return move(batch)
    if isinstance(batch, PackedSequence):
        return _map_packed(batch, move)
    if isinstance(batch, tuple):
        items = [map_tensors(item, move) for item in batch]
        return type(batch)._make(items) if hasattr(batch, "_make") else type(batch)(items)
    if isinstance(batch, list):
        moved_list = copy.copy(batch)
        moved_list[:] = [map_tensors(item, move) for item in batch]
        return moved_list
    if isinstance(batch, MutableMapping):
        moved = copy.copy(batch)
        for key, item in batch.items():
            moved[key] = map_tensors(item, move)
        return moved
    if isinstance(batch, Mapping):
        return {key: map_tensors(item, move) for key, item in batch.items()}
    if hasattr(batch, "get_tensors") and hasattr(batch, "from_tensors"):
        return batch.from_tensors([map_tensors(item, move) for item in batch.get_tensors()])
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return _map_dataclass(batch, move)
    return batch


def _map_packed(batch: PackedSequence, move: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    # torch wants `batch_sizes` on the CPU whatever the device.
    indices = (batch.sorted_indices, batch.unsorted_indices)
    moved = (None if index is None else move(index) for index in indices)
    return PackedSequence(move(batch.data), batch.batch_sizes, *moved)


def _map_dataclass(batch: Any, move: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    moved = copy.copy(batch)
    for field in dataclasses.fields(batch):
        item = map_tensors(getattr(batch, field.name), move)
        object.__setattr__(moved, field.name, item)  # a frozen dataclass refuses plain assignment
    return moved


def named_tensors(batch: Any, name: str = "batch") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a batch, each by how a script reaches it: `batch["labels"]`, `batch[0]`."""
    if isinstance(batch, torch.Tensor):
        yield name, batch
    elif isinstance(batch, Mapping):
        for key, item in batch.items():
            yield from named_tensors(item, f"{name}[{json.dumps(str(key))}]")
    elif isinstance(batch, tuple | list):
        for place, item in enumerate(batch):
            yield from named_tensors(item, f"{name}[{place}]")


def num_samples(batch: Any) -> int:
    """Extent of the first tensor's first dimension, 0 if the batch has no such tensor."""

    def first(item: Any) -> int | None:
        if isinstance(item, torch.Tensor):
            return item.shape[0] if item.dim() else None
        values = item.values() if isinstance(item, Mapping) else item
        if not isinstance(values, list | tuple) and not isinstance(item, Mapping):
            return None
        return next((n for value in values if (n := first(value)) is not None), None)

    return first(batch) or 0
