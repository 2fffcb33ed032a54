"""A step on trial: its function is run apart, on placeholders, and all that it did is undone.

    tensors ──placeholders──┐
    numbers ──marks─────────┤──function──> nodes, numbers' tape, places of new tensors
                            └─ undone: storages, Python objects, random streams

It is run twice with other marks; what comes out must be the same, or the numbers' way into the
graph is not understood.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import TreeSpec, tree_flatten

from trcomp.runtime import client, ir, rng, storage
from trcomp.runtime.capture.counters import CounterReads, is_counter
from trcomp.runtime.capture.facts import NO_GRADIENT, CannotWatchError, TensorFact
from trcomp.runtime.capture.numbers import Number, Tape, through_math
from trcomp.runtime.capture.observer import Observer, Prevented, line_storing
from trcomp.runtime.capture.restore import HostDraws, put_back
from trcomp.runtime.capture.state import State, numbered
from trcomp.runtime.device import is_on_device
from trcomp.runtime.dtypes import TO_TORCH
from trcomp.runtime.ir import Value, View
from trcomp.runtime.placeholders import CannotCaptureError, InPlace
from trcomp.runtime.regions import Recording, apart

_make_tensor = torch._C._acc.create_empty_tensor


class _MoreError(Exception):
    """A run met functions or storages that were not looked at before it."""

    def __init__(self, functions: dict[Any, dict[str, Any]], hidden: list[torch.Tensor]) -> None:
        self.functions = functions
        self.hidden = hidden


@dataclass(frozen=True)
class Returned:
    """One of the things that a function returns: a number of the tape."""

    register: int


@dataclass
class Subject:
    """What is tried.

    Attributes:
        call: The function of a call's leaves.
        leaves: A call's arguments, flat.
        roots: What the function can reach, by name.
        lifts: Whether numbers may change from call to call.
        functions: More functions of the script that it was seen to run, and their globals.
        hidden: Tensors over storages that it was seen to write, and nothing leads to.
    """

    call: Callable[[list[Any]], Any]
    leaves: list[Any]
    roots: list[tuple[str, Any]]
    lifts: bool = True
    functions: dict[Any, dict[str, Any]] = field(default_factory=dict)
    hidden: list[torch.Tensor] = field(default_factory=list)

    def look(self) -> State:
        """What the function can reach now."""
        return State(self.roots, self.functions.items())

    def tensors(self, state: State) -> list[torch.Tensor]:
        """On the device: of the call, of the state, hidden ones, gradients; the region's order."""
        given = [leaf for leaf in self.leaves if _is_device_tensor(leaf)]
        gradients = [t.grad for t in state.gradients if t.grad is not None]
        return [*given, *state.tensors, *self.hidden, *gradients]


@dataclass
class Trial:
    """What came of one run.

    Attributes:
        counters: Host tensors that moved on, and by how much.
        slots: Paths at which there is another tensor afterwards; None where there is none.
        results: What the function returned, flat: a number of places, tape's numbers, or constants.
    """

    recording: Recording
    tape: Tape
    counters: list[float]
    slots: dict[str, bool]
    results: list[Any]
    form: TreeSpec

    def key(self) -> Any:
        """Equal for runs that did the same."""
        results = [type(r) if type(r) is Number else r for r in self.results]
        return (
            self.recording.key(),
            self.tape.key(),
            self.counters,
            self.slots,
            [repr(r) for r in results],
            self.form,
        )


def numbers_of(leaves: Sequence[Any], state: State) -> list[float]:
    """The numbers of a call: of its arguments, of parameter groups."""
    found = [leaf for leaf in leaves if type(leaf) is float]
    for _, group in state.groups:
        for _, item in numbered(group):
            found += item if isinstance(item, tuple) else [item]
    return found


class _Run:
    """One run of a subject on placeholders."""

    def __init__(self, subject: Subject, state: State, seed: int) -> None:
        self.subject = subject
        self.state = state
        self.tape = Tape(seed)
        self.observer = Observer()
        self.hosts = [t for path, t in state.host_tensors if is_counter(path, t)]
        self.counters: dict[int, tuple[Number, float]] = {}
        self._gradients_before = {id(t): t.grad for t in state.gradients}
        self._generators_before = [each.get_state() for _, each in state.generators]

    def trial(self) -> Trial:
        """Run; everything is as before afterwards."""
        host, start, address = HostDraws(), ir.tick(), storage.next_address()
        try:
            with ExitStack() as undone:
                undone.enter_context(put_back(self.state))
                written = undone.enter_context(storage.restored())
                draws = undone.enter_context(apart())
                undone.enter_context(through_math())
                placeholders = InPlace(self.subject.tensors(self.state))
                leaves = self._mark()
                returned = self._call(leaves)
                if (drawn := host.drawn()) is not None:
                    raise CannotCaptureError(f"it draws numbers of {drawn}")
                return self._collect(returned, placeholders, draws, written, start, address)
        except Prevented as prevented:
            raise CannotCaptureError(str(prevented)) from None
        finally:
            host.drawn()

    def _mark(self) -> list[Any]:
        """Put numbers that are known again in place of the call's; the leaves to call with."""
        leaves = [self._number(x) if type(x) is float else x for x in self.subject.leaves]
        for _, group in self.state.groups:
            for name, item in numbered(group):
                several = isinstance(item, tuple)
                group[name] = tuple(map(self._number, item)) if several else self._number(item)
        alike: dict[float, Number] = {}
        for tensor in self.hosts:
            truth = tensor.item()
            if truth not in alike:
                alike[truth] = self.tape.source(truth, self.tape.count_mark())
            mark = float.__float__(alike[truth])
            with torch.no_grad():
                tensor.fill_(mark)
            self.counters[id(tensor)] = (alike[truth], mark)
        return leaves

    def _number(self, truth: float) -> float:
        number = self.tape.source(truth)
        return number if self.subject.lifts else self.tape.pin(number)

    def _call(self, leaves: list[Any]) -> Any:
        with ExitStack() as watched:
            if self.counters:
                watched.enter_context(CounterReads(self.counters))
            watched.enter_context(self.observer.watching())
            returned = self.subject.call(leaves)
        if self.observer.prevented is not None:
            raise CannotCaptureError(self.observer.prevented)
        return returned

    def _collect(
        self,
        returned: Any,
        placeholders: InPlace,
        draws: rng.Draws,
        written: dict[int, tuple[Any, Value]],
        start: int,
        address: int,
    ) -> Trial:
        self._check_seen(placeholders, written, address)
        self._check_generators()
        after = self.subject.look()
        slots = self._changed_slots(after)
        flat, form = tree_flatten(returned)
        results = [self._result(result) for result in flat]
        tensors = [each for each in flat if _is_device_tensor(each)]
        tensors += [after.slots[path].get() for path, holds in slots.items() if holds]
        marks = {m: (1, register, 0) for m, register in self.tape.marks.items()}
        recording = Recording(placeholders, tensors, marks, draws)
        for node in recording.graph.nodes:
            if node.seq < start:
                raise CannotCaptureError("it reads a tensor that nothing of the script leads to")
        moved = [tensor.item() - self.counters[id(tensor)][1] for tensor in self.hosts]
        return Trial(recording, self.tape, moved, slots, results, form)

    def _check_seen(
        self, placeholders: InPlace, written: dict[int, tuple[Any, Value]], address: int
    ) -> None:
        functions = self.observer.functions
        unseen = {c: g for c, g in functions.items() if c not in self.state.codes}
        for code in unseen:
            if code.co_freevars:
                raise CannotCaptureError(
                    f"it runs {code.co_qualname}, at {code.co_filename}:{code.co_firstlineno}, "
                    "whose closure nothing of the script leads to"
                )
        hidden = [
            _over(held, value)
            for held, value in written.values()
            if held.data_ptr() < address and placeholders.position(held) is None
        ]
        if unseen or hidden:
            raise _MoreError(unseen, hidden)

    def _check_generators(self) -> None:
        pairs = zip(self.state.generators, self._generators_before, strict=True)
        for (path, generator), before in pairs:
            if not torch.equal(generator.get_state(), before):
                raise CannotCaptureError(f"it draws from the generator {path}")

    def _changed_slots(self, after: State) -> dict[str, bool]:
        """Where there is another tensor now: whether there is one at all.

        Raises:
            CannotCaptureError: Something else changed.
        """
        found: dict[str, bool] = {}
        for path in self.state.differing(after):
            was, now = self.state.facts.get(path), after.facts.get(path)
            if path in self.state.gradient_paths and path in after.slots:
                found[path] = now != NO_GRADIENT
            elif not (isinstance(was, TensorFact) and was.is_like(now) and was.on_device):
                raise self._refused(path, after)
            elif path in after.slots and path in self.state.paths:
                found[path] = True
            else:
                raise CannotCaptureError(f"it replaces {path}, which is held in several places")
        for path, slot in self.state.slots.items():
            if path in self.state.gradient_paths and path in after.slots and path not in found:
                before = self._gradients_before.get(id(slot.holder))
                if after.slots[path].get() is not before:
                    found[path] = True
        return dict(sorted(found.items()))

    def _refused(self, path: str, after: State) -> CannotCaptureError:
        difference = self.state.difference(after)
        where, words = difference or (path, "changes")
        line = line_storing(self.observer.functions, where)
        place = f"{line}: " if line else ""
        return CannotCaptureError(f"{place}it leaves {where} changed: it {words}")

    def _result(self, result: Any) -> Any:
        if isinstance(result, Number):
            return Returned(result.register)
        if _is_device_tensor(result):
            self._check_derived(result)
            return torch.Tensor
        if isinstance(result, (type(None), bool, int, float, complex, str, bytes)):
            return result
        raise CannotCaptureError(
            f"it returns a {type(result).__name__}, which a replay cannot make"
        )

    def _check_derived(self, result: torch.Tensor) -> None:
        if result.grad_fn is None:
            return
        seen = set()
        stack = [each.grad_fn for each in self.observer.derived]
        while stack:
            node = stack.pop()
            if node is not None and node not in seen:
                seen.add(node)
                stack += [source for source, _ in node.next_functions]
        if result.grad_fn not in seen:
            raise CannotCaptureError(
                "it returns a tensor whose backward pass is still to come; detach it, or call "
                "backward in the step"
            )


def _is_device_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and is_on_device(value)


def _over(held: Any, value: Value) -> torch.Tensor:
    """A tensor over a whole storage that was found by what it holds."""
    if value.node is not None and (out := value.node.signature.outputs[value.index]) is not None:
        view = View(out.size, out.stride, 0, out.dtype)
    else:
        array = value.source()[0]
        if not isinstance(array, ir.Buffer):
            raise CannotCaptureError("it writes a tensor that nothing of the script leads to")
        shape, dtype = array.aval[:2]  # type: ignore[index]
        view = View(tuple(shape), storage.contiguous_stride(tuple(shape)), 0, TO_TORCH[dtype])
    return storage.relayout(_make_tensor(view.size, view.dtype), held, view)


_ATTEMPTS = 6
"""Each run may meet functions that no earlier one did."""


def try_twice(subject: Subject) -> tuple[Trial, State]:
    """Run a subject until two runs understand it alike; the first of them, and what it looked at.

    Raises:
        CannotCaptureError: It cannot be captured; the message says why.
    """
    for _ in range(_ATTEMPTS):
        try:
            state = subject.look()
            first = _Run(subject, state, 0).trial()
            second = _Run(subject, state, 1).trial()
        except CannotWatchError as error:
            raise CannotCaptureError(str(error)) from None
        except _MoreError as more:
            subject.functions.update(more.functions)
            subject.hidden += more.hidden
            continue
        if first.key() == second.key() and _same_constants(first, second):
            return first, state
        if not subject.lifts:
            raise CannotCaptureError("two runs of it recorded different operations")
        subject.lifts = False
    raise CannotCaptureError("each run of it runs other functions")


def _same_constants(first: Trial, second: Trial) -> bool:
    """Whether what the host made and copied to the device is the same in two runs."""
    for one, other in zip(first.recording.graph.leaves, second.recording.graph.leaves, strict=True):
        if one is other:
            raise CannotCaptureError("it reads a tensor that nothing of the script leads to")
        if not np.array_equal(_host(one), _host(other)):
            return False
    return True


def _host(buffer: ir.Buffer) -> Any:
    return np.asarray(client.to_local(buffer))
