"""Whether what a captured step can reach is still as it was: a comparison of identities, in bulk.

Some hundred modules are some thousand entries of dicts. They are compared by iterators that run in
C, in a fraction of a millisecond; only what differs is looked at more closely (`state`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import attrgetter, call, is_, itemgetter
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from trcomp import flags
from trcomp.runtime import precision
from trcomp.runtime.capture.state import HOOKS, State, is_number
from trcomp.runtime.device import NAME

_BASE: Any = torch._C.TensorBase
_gradient: Callable[[Any], Any] = _BASE.grad.__get__
_requires_grad: Callable[[Any], Any] = _BASE.requires_grad.__get__
_version: Callable[[Any], Any] = _BASE._version.__get__
_NUMBERS = object()
"""In place of a group's numbers, which may change."""


def modes() -> tuple[Any, ...]:
    """What decides how torch runs anything, wherever it was set."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled(NAME) and torch.get_autocast_dtype(NAME),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_cache_enabled(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_anomaly_enabled(),
        precision.chosen(),
        torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(),
        flags.EAGER.get(),
        flags.CHECK.get(),
    )


class Guard:
    """Compares what a state is made of with what it was made of.

    Args:
        state: As it is now, and is to be.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self._dicts = [each for each in state.dicts if each]
        self._empty: list[Any] = [each for each in state.dicts if not each]
        self._empty += [each for each in (*state.lists, *state.sets) if not each]
        self._hooks = [each for each in state.hooks if not each]
        self._dicts += [each for each in state.hooks if each]
        self._num_hooks = RemovableHandle.next_id
        self._lists = [each for each in (*state.lists, *state.sets) if each]
        self._own = [itemgetter(*_names_in(each)) for each in state.modules]
        self._sizes = self._all_sizes()
        self.refresh()
        self._gradients = [_of_gradient(_gradient(each)) for each in state.gradients]
        self.host_versions = self.all_host_versions()

    def refresh(self) -> None:
        """Take the entries, and the state's tensors, as they are now."""
        self._known = self._all_entries()
        self._layout = self._all_layouts(self.state.tensors)

    def holds(self) -> bool:
        """Whether all is as it was, but for numbers and the values of tensors."""
        if any(self._empty) or self._all_sizes() != self._sizes or not self._no_new_hooks():
            return False
        entries = self._all_entries()
        return (
            len(entries) == len(self._known)
            and all(map(is_, entries, self._known))
            and self._all_layouts(self.state.tensors) == self._layout
            and self.gradients_hold()
        )

    def _no_new_hooks(self) -> bool:
        """Whether modules that had no hooks have none; torch counts all that are registered."""
        if RemovableHandle.next_id != self._num_hooks:
            if any(self._hooks):
                return False
            self._num_hooks = RemovableHandle.next_id
        return True

    def gradients_hold(self) -> bool:
        """Whether there are gradients where there were, laid out alike."""
        now = map(_gradient, self.state.gradients)
        for gradient, known in zip(now, self._gradients, strict=True):
            if gradient is None or known is None:
                if gradient is not known:
                    return False
            elif gradient.stride() != known[0] or gradient.dtype != known[1]:
                return False
        return True

    def all_host_versions(self) -> list[int]:
        """Versions of the host's tensors: they move on when one is written."""
        return [_version(tensor) for _, tensor in self.state.host_tensors]

    def _all_sizes(self) -> list[int]:
        return [*map(len, self._dicts), *map(len, self._lists), *map(len, self.state.modules)]

    def _all_entries(self) -> list[Any]:
        state = self.state
        return [
            *chain.from_iterable(map(dict.values, self._dicts)),
            *chain.from_iterable(map(call, self._own, state.modules)),
            *chain.from_iterable(self._lists),
            *map(_content, state.cells),
            *(names.get(name) for names, name in state.names),
            *chain.from_iterable(_entries(group) for _, group in state.groups),
            *chain.from_iterable(vars(kind).values() for kind in state.classes),
            *(getattr(held, name, None) for held, names in state.slotted for name in names),
            *(_interned(array.tobytes()) for array in state.arrays),
        ]

    def _all_layouts(self, tensors: Sequence[torch.Tensor]) -> tuple[list[Any], ...]:
        return (
            [*map(_BASE.data_ptr, tensors)],
            [*map(_requires_grad, tensors)],
            [*map(_BASE.stride, tensors)],
            [*map(_BASE.size, tensors)],
        )


def _names_in(attributes: dict[str, Any]) -> list[str]:
    """A module's attributes but for its dicts of hooks, which are looked into for themselves."""
    return ["_modules", "_modules", *(name for name in attributes if name not in HOOKS)]


_contents = attrgetter("cell_contents")


def _content(cell: Any) -> Any:
    try:
        return _contents(cell)
    except ValueError:
        return _NUMBERS


def _entries(group: dict[str, Any]) -> Iterable[Any]:
    return [_NUMBERS if is_number(group[name]) else group[name] for name in sorted(group)]


_texts: dict[bytes, bytes] = {}


def _interned(content: bytes) -> bytes:
    return _texts.setdefault(content, content)


def _of_gradient(gradient: torch.Tensor | None) -> Any:
    return None if gradient is None else (gradient.stride(), gradient.dtype)
