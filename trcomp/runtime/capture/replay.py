"""A captured step: its guards, and what a call of it does instead of running the function."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_unflatten

from trcomp.runtime.capture.counters import Counters
from trcomp.runtime.capture.facts import TensorFact, of_tensor
from trcomp.runtime.capture.guards import Guard
from trcomp.runtime.capture.state import Slot, State
from trcomp.runtime.capture.trial import Returned, Subject, Trial, numbers_of
from trcomp.runtime.ir import Signature
from trcomp.runtime.regions import Place, Region

_increment_versions = torch.autograd.graph.increment_version


class CapturedStep:
    """One form of a step, replayed as one node of the graph.

    Args:
        trial: What it does.
        state: What it was captured with, and holds for.
        subject: Its arguments at that time.
        key: What else it holds for.
    """

    def __init__(self, trial: Trial, state: State, subject: Subject, key: Hashable) -> None:
        self.key = key
        self.state = state
        self._results, self._form = trial.results, trial.form
        self._moves, self._held_slots = trial.counters, trial.slots
        self._tape = trial.tape
        self._region: Region = trial.recording.region(lambda node: None)
        self._guard = Guard(state)
        self._lifts = subject.lifts
        self._hidden = subject.hidden
        self._functions = subject.functions
        self._counters = Counters(state, trial.counters)
        self._fixed = [each.untyped_storage() for each in (*state.tensors, *subject.hidden)]
        self._places = self._find_places()
        self._shared = self._shared_with(subject.leaves)
        self._num_given = sum(isinstance(leaf, torch.Tensor) for leaf in subject.leaves)
        self._written = _written_tensors(self._region, self._num_given, state)
        kept = {i for i, _ in self._region.written}
        for result in self._region.results:
            if isinstance(result, Place) and result.argument is not None:
                kept.add(result.argument)
        self._kept_given = {self._region.storages[i] for i in kept}
        self._slot_paths = [path for path, holds in trial.slots.items() if holds]
        self._slots = [state.slots[path] for path in self._slot_paths]
        self._emptied = [state.slots[path] for path, holds in trial.slots.items() if not holds]
        self._own = _OwnTensors(self._region, len(self._slots))
        self._replaced = [
            (path, state.paths.index(path), place)
            for place, path in enumerate(self._slot_paths)
            if path not in state.gradient_paths
        ]
        """Tensors of the state that each call replaces: path, place in it and among the slots."""

    @property
    def signature(self) -> Signature:
        """Of the node that a call records."""
        return self._region.signature

    def rebase(self, state: State) -> bool:
        """Go on with the objects of another state, if they are as those before."""
        may_differ = {path for path, _, _ in self._replaced}
        if state.paths != self.state.paths or len(state.gradients) != len(self.state.gradients):
            return False
        for path in self.state.differing(state):
            was, now = self.state.facts.get(path), state.facts.get(path)
            if path not in may_differ or not isinstance(was, TensorFact) or not was.is_like(now):
                return False
        self.state = state
        self._fixed = [each.untyped_storage() for each in (*state.tensors, *self._hidden)]
        self._places = self._find_places()
        self._guard = Guard(state)
        self._counters = Counters(state, self._moves)
        self._slots = [state.slots[path] for path in self._slot_paths]
        self._emptied = [
            s for path, s in state.slots.items() if self._held_slots.get(path) is False
        ]
        self._written = _written_tensors(self._region, self._num_given, state)
        return True

    def fits(self, leaves: Sequence[Any]) -> bool:
        """Whether nothing that the step can reach has changed, but for numbers and values."""
        return (
            self._guard.holds()
            and self._counters.hold()
            and self._shared_with(leaves) == self._shared
        )

    def takes_copies(self, leaves: Sequence[Any], originals: Sequence[Any]) -> bool:
        """Whether the step may be called with copies in place of some of its arguments.

        It may not where it writes an argument, or returns a part of one.
        """
        given = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        copied = {place for place, i in enumerate(given) if leaves[i] is not originals[i]}
        return copied.isdisjoint(self._kept_given)

    def _shared_with(self, leaves: Sequence[Any]) -> list[int | None]:
        """For each tensor given, which of the state's storages it lies over, if over one."""
        pointers = [x.untyped_storage().data_ptr() for x in leaves if isinstance(x, torch.Tensor)]
        gradients = {t.grad.data_ptr() for t in self.state.gradients if t.grad is not None}
        return [-1 if p in gradients else self._places.get(p) for p in pointers]

    def _find_places(self) -> dict[int, int]:
        return {held.data_ptr(): i for i, held in enumerate(self._fixed)}

    def play(self, leaves: Sequence[Any]) -> list[float] | None:
        """The numbers of a call; None if the step goes another way with them."""
        return self._tape.play([*numbers_of(leaves, self.state), *self._counters.values()])

    def __call__(self, leaves: Sequence[Any], registers: list[float]) -> Any:
        """Do what the function does: one node, and the host's part.

        Args:
            leaves: A call's arguments, alike to those of the capture.
            registers: The call's numbers, from `play`.
        """
        gradients = (tensor.grad for tensor in self.state.gradients)
        storages = [
            *(leaf.untyped_storage() for leaf in leaves if isinstance(leaf, torch.Tensor)),
            *self._fixed,
            *(gradient.untyped_storage() for gradient in gradients if gradient is not None),
        ]
        made = self._region(registers, storages, self._own.reusable(self._slots))
        _increment_versions(self._written)
        self._counters.advance()
        num_results = len(made) - len(self._slots)
        filled = made[num_results:]
        del made[num_results:]
        if self._replaced:
            self._note_replaced(filled)
        self._own.fill(self._slots, filled)
        for slot in self._emptied:
            slot.put(None)
        tensors = iter(made)
        results = [self._result(result, tensors, registers) for result in self._results]
        return tree_unflatten(results, self._form)

    def _note_replaced(self, tensors: Sequence[torch.Tensor | None]) -> None:
        for path, i, place in self._replaced:
            tensor = tensors[place]
            if tensor is not None:
                self._slots[place].put(tensor)
                self.state.tensors[i] = tensor
                self.state.facts[path] = of_tensor(tensor)
                self._fixed[i] = tensor.untyped_storage()
        self._places = self._find_places()
        self._guard.refresh()

    @staticmethod
    def _result(result: Any, tensors: Any, registers: list[float]) -> Any:
        if result is torch.Tensor:
            return next(tensors)
        return registers[result.register] if isinstance(result, Returned) else result


class _OwnTensors:
    """Tensors that earlier calls put into slots: used again while nobody else has hold of them.

    A backward pass makes new gradients each time. Whoever kept the old ones must find them
    unchanged; mostly nobody did, and it is cheaper to give the same tensor another value.
    """

    def __init__(self, region: Region, num_slots: int) -> None:
        places = region.results[len(region.results) - num_slots :]
        shared = Counter(place.made for place in region.results if isinstance(place, Place))
        self._made = [
            place.made if place.argument is None and shared[place.made] == 1 else None
            for place in places
        ]
        self._tensors: list[torch.Tensor | None] = [None] * num_slots
        self._holds: list[tuple[int, int, int]] = [(0, 0, 0)] * num_slots
        self._storages: list[Any] = [None] * num_slots

    def reusable(self, slots: Sequence[Slot]) -> dict[int, Any]:
        """For each new storage of the region that a slot's tensor can be over, the tensor's."""
        found = {}
        for i, made in enumerate(self._made):
            if (
                made is not None
                and self._tensors[i] is not None
                and slots[i].get() is self._tensors[i]
                and self._count_holds(i) == self._holds[i]
            ):
                found[made] = self._storages[i]
        return found

    def fill(self, slots: Sequence[Slot], tensors: list[torch.Tensor | None]) -> None:
        """Put new tensors into their slots, where there are any."""
        for i, made in enumerate(tensors):
            if made is not None:
                slots[i].put(made)
                self._tensors[i] = made
                self._storages[i] = made.untyped_storage()
        made = None
        filled = [i for i, tensor in enumerate(tensors) if tensor is not None]
        tensors.clear()
        for i in filled:
            self._holds[i] = self._count_holds(i)

    def _count_holds(self, i: int) -> tuple[int, int, int]:
        """How often a tensor is referred to: from Python, from elsewhere, and its storage."""
        tensor: Any = self._tensors[i]
        uses = torch._C._storage_Use_Count(self._storages[i]._cdata)
        return sys.getrefcount(tensor), tensor._use_count(), uses


def _written_tensors(region: Region, num_given: int, state: State) -> list[torch.Tensor]:
    """One tensor of the state over each storage that the step writes."""
    positions = {region.storages[i] - num_given for i, _ in region.written}
    return [tensor for i, tensor in enumerate(state.tensors) if i in positions]
