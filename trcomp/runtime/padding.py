"""Batches padded to few shapes, so that few graphs are compiled.

    rows     a smaller last batch gets the rows of a full one
    lengths  sequences get the next of a few lengths
    values   what named tensors are filled with; the loss must leave that out

What a loss makes of padding is up to the loss, so nothing is padded whose value was not given: rows
of other tensors are repeated, which computes no infinity that the batch itself does not.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import torch

from trcomp.errors import Problem, SpecError, nearest

Values = Mapping[Any, float]
"""By a tensor's key in the batch, or its position: the number that padding is filled with."""


class Padding:
    """Pads batches; for `DeviceLoader(loader, pad=Padding({"labels": -100}, rows=True))`.

    Args:
        values: What the named tensors are filled with: what the loss, or the model by its mask,
            leaves out. The other tensors get rows that the batch has.
        rows: Whether a batch with fewer rows than an earlier one gets as many.
        lengths: To which dimension 1 of the named tensors is filled up; longer ones stay.

    Raises:
        SpecError: Holds every word that is wrong.
    """

    def __init__(self, values: Values, *, rows: bool = False, lengths: Sequence[int] = ()) -> None:
        self._rows = 0
        self._pads_rows = rows
        self._values = dict(values)
        problems = [
            Problem("lengths", length, "whole numbers from 1.")
            for length in lengths
            if type(length) is not int or length < 1
        ]
        if not values:
            allowed = 'what the loss leaves out is needed, such as {"labels": -100}.'
            problems.append(Problem("values", values, allowed))
        if not rows and not lengths:
            problems.append(Problem("rows", rows, "rows=True or lengths=(128, 256) is needed."))
        if problems:
            raise SpecError(problems)
        self._lengths = sorted(lengths)

    def __call__(self, batch: Any) -> Any:
        """A batch of the same type; those that need no padding as they are.

        Raises:
            SpecError: The batch lacks a tensor that has a value.
        """
        items = dict(_items(batch))
        self._check(items)
        changed = dict(items)
        for key, value in self._values.items():
            changed[key] = self._longer(changed[key], value)
        if self._pads_rows:
            changed = self._fuller(changed)
        changed = {key: item for key, item in changed.items() if item is not items[key]}
        return _with(batch, changed) if changed else batch

    def _check(self, items: Mapping[Any, Any]) -> None:
        problems = [
            Problem("values", key, f"the batch has {', '.join(map(repr, items))}.", near)
            for key in self._values
            if not isinstance(items.get(key), torch.Tensor)
            for near in [nearest(str(key), list(map(str, items)))]
        ]
        if problems:
            raise SpecError(problems)

    def _longer(self, tensor: torch.Tensor, value: float) -> torch.Tensor:
        if not self._lengths or tensor.dim() < 2:
            return tensor
        length = tensor.shape[1]
        place = bisect_left(self._lengths, length)
        if place == len(self._lengths) or self._lengths[place] == length:
            return tensor
        shape = (tensor.shape[0], self._lengths[place] - length, *tensor.shape[2:])
        return torch.cat([tensor, tensor.new_full(shape, value)], 1)

    def _fuller(self, items: Mapping[Any, Any]) -> dict[Any, Any]:
        named = next(iter(self._values))
        count = items[named].shape[0]
        self._rows = max(self._rows, count)
        missing = self._rows - count
        made = dict(items)
        for key, item in items.items():
            if not missing or not isinstance(item, torch.Tensor) or item.shape[:1] != (count,):
                continue
            if key in self._values:
                more = item.new_full((missing, *item.shape[1:]), self._values[key])
            else:
                more = item[torch.arange(missing) % count]
            made[key] = torch.cat([item, more])
        return made


def _items(batch: Any) -> Iterable[tuple[Hashable, Any]]:
    return batch.items() if isinstance(batch, Mapping) else enumerate(batch)


def _with(batch: Any, changed: Mapping[Any, Any]) -> Any:
    """A batch of the same type with some of its items changed."""
    if isinstance(batch, MutableMapping):
        made = copy.copy(batch)
        for key, item in changed.items():
            made[key] = item
        return made
    if isinstance(batch, Mapping):
        return {**batch, **changed}
    items = [changed.get(place, item) for place, item in enumerate(batch)]
    if isinstance(batch, tuple):
        return type(batch)._make(items) if hasattr(batch, "_make") else type(batch)(items)
    return items
