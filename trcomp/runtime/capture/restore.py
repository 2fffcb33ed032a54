"""Puts the Python objects of a state back as they were, after a function was run on trial."""

from __future__ import annotations

import random
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from operator import is_
from typing import Any

import torch

from trcomp.runtime.capture.state import State


@contextmanager
def put_back(state: State) -> Iterator[None]:
    """Whatever is done meanwhile to what the state can reach is undone at the end."""
    contents = _Contents(state)
    try:
        yield
    finally:
        contents.restore()


class _Contents:
    def __init__(self, state: State) -> None:
        self._dicts = [(each, dict(each)) for each in state.dicts]
        self._dicts += [(each, dict(each)) for each in (*state.modules, *state.hooks)]
        self._dicts += [(each, dict(each)) for _, each in state.groups]
        self._lists = [(each, list(each)) for each in state.lists]
        self._sets = [(each, set(each)) for each in state.sets if isinstance(each, set)]
        self._slots = [
            (held, name, getattr(held, name, None))
            for held, names in state.slotted
            for name in names
        ]
        self._cells = [(cell, cell.cell_contents) for cell in state.cells if _is_set(cell)]
        self._names = [(names, name, names[name]) for names, name in state.names]
        self._gradients = [(tensor, tensor.grad) for tensor in state.gradients]
        self._required = [(tensor, tensor.requires_grad) for tensor in state.tensors]
        self._hosts = [(tensor, tensor.detach().clone()) for _, tensor in state.host_tensors]
        self._generators = [(each, each.get_state()) for _, each in state.generators]

    def restore(self) -> None:
        """Put all of it back."""
        for held, before in self._dicts:
            if not _same(held.values(), before.values()):
                held.clear()
                held.update(before)
        for items, old in self._lists:
            if not _same(items, old):
                items.clear()
                items.extend(old)
        for members, known in self._sets:
            if members != known:
                members.clear()
                members.update(known)
        for owner, name, value in self._slots:
            if getattr(owner, name, None) is not value:
                setattr(owner, name, value)
        for cell, content in self._cells:
            cell.cell_contents = content
        for names, name, value in self._names:
            if names.get(name) is not value:
                names[name] = value
        with torch.no_grad():
            self._restore_tensors()

    def _restore_tensors(self) -> None:
        for tensor, gradient in self._gradients:
            if tensor.grad is not gradient:
                tensor.grad = gradient
        for tensor, required in self._required:
            if tensor.requires_grad != required:
                tensor.requires_grad_(required)
        for tensor, copy in self._hosts:
            tensor.copy_(copy)
        for generator, state in self._generators:
            generator.set_state(state)


def _same(now: Collection[Any], before: Collection[Any]) -> bool:
    return len(now) == len(before) and all(map(is_, now, before))


def _is_set(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


class HostDraws:
    """The host's random streams, so that what draws from them is noticed and undone."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._torch = torch.default_generator.get_state()
        self._numpy = sys.modules.get("numpy.random")
        self._numpy_state = self._numpy and self._numpy.get_state()

    def drawn(self) -> str | None:
        """Whose numbers were drawn meanwhile, if any were; all are then as they were."""
        found = None
        if random.getstate() != self._python:
            random.setstate(self._python)
            found = "random"
        if not torch.equal(torch.default_generator.get_state(), self._torch):
            torch.default_generator.set_state(self._torch)
            found = "torch's generator of the CPU"
        if self._numpy is not None:
            state: Any = self._numpy.get_state()
            before: Any = self._numpy_state
            if state[2:] != before[2:] or (state[1] != before[1]).any():
                self._numpy.set_state(before)
                found = "numpy.random"
        return found
