"""A data loader's batches from some place of its epoch on; what comes before is not read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

END = object()


class _Rest:
    """A sampler without its first items.

    Attributes:
        skipped: How many of them an iteration that begins now leaves out.
    """

    def __init__(self, sampler: Any, skipped: int) -> None:
        self._sampler = sampler
        self.skipped = skipped

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._sampler), self.skipped, None)

    def __len__(self) -> int:
        return len(self._sampler)


def inner(loader: Any) -> Any:
    """The loader that reads, below those that move its batches to the device."""
    while not isinstance(loader, DataLoader) and "_loader" in getattr(loader, "__dict__", {}):
        loader = loader._loader
    return loader


def generators(loader: Any) -> list[torch.Generator]:
    """The generators that decide a loader's order, each once."""
    found: list[torch.Generator] = []
    reader = inner(loader)
    sampler = getattr(reader, "sampler", None)
    within = getattr(getattr(reader, "batch_sampler", None), "sampler", None)
    for holder in (reader, sampler, within):
        generator = getattr(holder, "generator", None)
        if isinstance(generator, torch.Generator) and all(generator is not one for one in found):
            found.append(generator)
    return found


def begun(loader: Any, done: int) -> tuple[Iterator[Any], Any]:
    """An iteration that leaves out its first batches, and the batch that it begins with.

    Args:
        loader: Any iterable of batches.
        done: How many are left out: not read where a sampler says what is in them.

    Returns:
        The iterator, and its first batch or `END`.
    """
    reader = inner(loader)
    if _is_chosen_from(reader):
        # Workers of the loader are told of batches from the first `next` on, or before.
        with _without(reader, done):
            iterator = iter(loader)
            return iterator, next(iterator, END)
    iterator = iter(loader)
    return iterator, next(islice(iterator, done, None), END)


def _is_chosen_from(reader: Any) -> bool:
    """Whether batches are chosen by a sampler that the next iteration asks for.

    Workers that have outlived an iteration keep the sampler that they began with.
    """
    has_sampler = isinstance(reader, DataLoader) and not isinstance(reader.dataset, IterableDataset)
    return has_sampler and reader._iterator is None


@contextmanager
def _without(reader: Any, count: int) -> Iterator[None]:
    # A DataLoader refuses another sampler by its attribute, and a copy of it would start workers
    # of its own.
    name = "sampler" if reader.batch_sampler is None else "batch_sampler"
    kept = vars(reader)[name]
    vars(reader)[name] = rest = _Rest(kept, count)
    try:
        yield
    finally:
        vars(reader)[name] = kept
        rest.skipped = 0  # Workers that outlive the epoch keep it.
