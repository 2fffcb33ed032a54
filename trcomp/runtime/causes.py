"""Why a graph was compiled: what it has that those before it had not, where, and what to do.

a new graph --like one before, but for shapes----> which input (varying.py)
            --the same operations-----------------> dtype, kind of a number, argument, result
            --others------------------------------> the first that is new, and its line
a step that something has cut in two------------> what cut it (interruptions.py)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from trcomp import remedies
from trcomp.runtime import interruptions, source_lines, varying
from trcomp.runtime.bodies import operations
from trcomp.runtime.graph import Graph
from trcomp.runtime.interruptions import Interruption
from trcomp.runtime.ir import Placed, ScalarSlot, Signature, View
from trcomp.runtime.metrics import counters
from trcomp.runtime.varying import Change

_KEPT_GRAPHS = 64
_MOST_SUMMARISED = 200
_NORMS = ("batch_norm", "batch_norm_backward")
_DROPOUTS = ("dropout", "native_dropout", "bernoulli")

_FIRST_STEPS = 2
_OF_THE_LOOP = frozenset({"operation", "result", "argument"})
_OF_SHAPES = frozenset({"shape", "last batch"})
_SELECTS = ("nonzero", "masked_select", "unique", "_unique", "repeat_interleave")
"""Operators on the CPU whose results have as many elements as their values say."""

FIRST = "first"


class Cause(NamedTuple):
    """Why a graph is compiled.

    Attributes:
        kind: "first", or one that `remedies` knows.
        text: What changed; empty for the first graph of its kind.
        line: Of the script, where that is.
    """

    kind: str
    text: str = ""
    line: str = ""

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return remedies.remedy(self.kind, self.text)


@dataclass(frozen=True)
class _Form:
    """What is kept of a graph that was compiled."""

    operations: tuple[tuple[Signature, str], ...]
    avals: tuple[Any, ...]
    """Shape and dtype of each input."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(signature.rule.name for signature, _ in self.operations)


_forms: deque[_Form] = deque(maxlen=_KEPT_GRAPHS)


def note(graph: Graph) -> Cause:
    """A graph is being compiled; says why."""
    lines = list(map(source_lines.of, graph.nodes))
    form = _Form(
        tuple(operations([node.signature for node in graph.nodes], lines)),
        tuple(leaf.aval for leaf in graph.leaves),
    )
    changed = varying.note(graph)
    cause = _of_shapes(graph, changed) if changed else _of_form(graph, form)
    _forms.append(form)
    return _of_cut(cause, interruptions.of_step()) or _of_start(cause)


def _of_cut(cause: Cause, found: Sequence[Interruption]) -> Cause | None:
    """What interrupted the step is why, where its parts are none of the graphs before."""
    if not cause.text:
        return None
    if cause.kind in _OF_SHAPES:
        selects = next((one for one in found if one.name.startswith(_SELECTS)), None)
        # What the loader hands over is named so, and has its shape from there.
        if selects is None or cause.text.startswith("batch"):
            return None
        text = f"{cause.text}; how much {selects.name} gives depends on values"
        return Cause("selection", text, selects.line)
    cut = next((one for one in found if one.cuts), None)
    if cut is None or cause.kind not in _OF_THE_LOOP:
        return None
    if cut.kind == interruptions.READ:
        return Cause("read", "a value is read within the step, which is cut there", cut.line)
    return Cause("cut", f"{cut.name} (run on the CPU) cuts the step there", cut.line)


def _of_start(cause: Cause) -> Cause:
    """The first step may record other operations than those after it; no script can help that."""
    if counters.steps < _FIRST_STEPS and cause.kind in _OF_THE_LOOP:
        return cause._replace(kind="start")
    return cause


def _of_shapes(graph: Graph, changed: Sequence[Change]) -> Cause:
    change = changed[0]
    more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
    name = graph.leaves[change.place].name or f"input {change.place}"
    text = f"{name} ({change.dtype}) was {_text(change.was)} and is {_text(change.now)}{more}"
    is_shorter = change.was[1:] == change.now[1:] and change.now < change.was
    is_last = is_shorter and change.seen == 1  # Ever other sizes are no matter of the last one.
    return Cause("last batch" if is_last else "shape", text, _user(graph, change.place))


def _user(graph: Graph, place: int) -> str:
    """The line that reads an input first."""
    pairs = zip(graph.nodes, graph.places, strict=True)
    users = (node for node, places in pairs if (-1, place) in places)
    return next((line for node in users if (line := source_lines.of(node))), "")


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "a number"


def _of_form(graph: Graph, form: _Form) -> Cause:
    """Why a graph is none of those before; compared with the one that is most like it."""
    if not _forms:
        return Cause(FIRST)
    near = max(reversed(_forms), key=lambda known: _likeness(known, form))
    common, after = _common(near, form)
    if 2 * (common + after) < len(form.operations):
        return Cause(FIRST)
    if form.names == near.names:
        return _of_inputs(graph, near, form) or _of_details(near, form)
    return _of_mode(near, form) or _of_operation(near, form, common)


def _likeness(known: _Form, form: _Form) -> tuple[int, int]:
    pairs = zip(known.operations, form.operations, strict=False)
    return sum(_common(known, form)), sum(ours is theirs for (ours, _), (theirs, _) in pairs)


def _common(known: _Form, form: _Form) -> tuple[int, int]:
    """How many operations two graphs have in common, from the first on and up to the last."""
    ours, theirs = known.names, form.names
    before = _num_equal(ours, theirs)
    return before, _num_equal(ours[before:][::-1], theirs[before:][::-1])


def _num_equal(ours: Sequence[str], theirs: Sequence[str]) -> int:
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((i for i, (own, other) in pairs if own != other), min(len(ours), len(theirs)))


def _of_mode(known: _Form, form: _Form) -> Cause | None:
    """One graph drops out and the other does not: modules were switched."""
    had, has = (any(_drops_out(name) for name in one.names) for one in (known, form))
    if had == has:
        return None
    names = known.names if had else form.names
    name = next(name for name in names if _drops_out(name))
    place = next((line for _, line in form.operations if line), "")
    switch = "eval() after train()" if had else "train() after eval()"
    return Cause("mode", f"{switch}: {name} is {'not ' * had}recorded", place)


def _drops_out(name: str) -> bool:
    return name.rpartition("::")[2].startswith(_DROPOUTS)


def _of_operation(known: _Form, form: _Form, common: int) -> Cause:
    if common == len(form.operations):
        name = known.names[common]
        line = form.operations[-1][1]
        return Cause("operation", f"it ends before {name}, which others go on with", line)
    signature, line = form.operations[common]
    before = f"where {known.names[common]} was" if common < len(known.names) else "at the end"
    return Cause("operation", f"new operation {signature.rule.name} {before}", line)


def _of_inputs(graph: Graph, known: _Form, form: _Form) -> Cause | None:
    """The operations are the same; which of their inputs differ."""
    changed = []
    for place, (was, now) in enumerate(zip(known.avals, form.avals, strict=False)):
        if was[1] != now[1]:
            name = graph.leaves[place].name or f"input {place}"
            return Cause("dtype", f"{name} was {was[1]} and is {now[1]}", _user(graph, place))
        if was[0] != now[0]:
            changed.append(Change(place, str(now[1]), was[0], now[0]))
    return _of_shapes(graph, changed) if changed else None


def _of_details(known: _Form, form: _Form) -> Cause:
    """The operations and their inputs are the same; what of them differs."""
    for (was, _), (now, line) in zip(known.operations, form.operations, strict=True):
        if was is not now and (cause := _of_signature(was, now, line)) is not None:
            return cause
    return Cause("result", "a tensor is kept that others drop, or the other way round")


def _of_signature(was: Signature, now: Signature, line: str) -> Cause | None:
    name = now.rule.name
    for before, after in zip(was.outputs, now.outputs, strict=False):
        if before is None or after is None:
            continue
        if before.dtype != after.dtype:
            text = f"{name} gave {before.dtype} and gives {after.dtype}".replace("torch.", "")
            return Cause("dtype", text, line)
        if before.size != after.size:
            text = f"{name} gave {_text(before.size)} and gives {_text(after.size)}"
            return Cause("shape", text, line)
    for seen, sees in zip(map(_size, was.views), map(_size, now.views), strict=False):
        if seen != sees:
            return Cause("shape", f"{name} read {_text(seen)} and reads {_text(sees)}", line)
    pairs = zip(_flat(was), _flat(now), strict=False)
    return next((_of_argument(name, *pair, line) for pair in pairs if pair[0] != pair[1]), None)


def _size(view: View | Placed | None) -> tuple[int, ...]:
    """What an operation reads of an operand; empty if all of it."""
    if view is None:
        return ()
    return (view.view if isinstance(view, Placed) else view).size


def _flat(signature: Signature) -> list[Any]:
    """A call's arguments, those in lists one by one."""
    flat: list[Any] = []
    for argument in (*signature.arguments, *sorted(signature.keywords.items())):
        plain = type(argument) is tuple
        flat += argument if plain else [argument]
    return flat


def _of_argument(name: str, was: Any, now: Any, line: str) -> Cause:
    slots = [one for one in (was, now) if isinstance(one, ScalarSlot)]
    if slots:
        return Cause("number", f"a number of {name} was {_kind(was)} and is {_kind(now)}", line)
    if name.endswith(_NORMS) and isinstance(now, bool):
        switch = "train() after eval()" if now else "eval() after train()"
        return Cause("mode", f"{switch}: {name} computes another way", line)
    return Cause("argument", f"an argument of {name} was {was!r} and is {now!r}", line)


def _kind(number: Any) -> str:
    kind = number.kind if isinstance(number, ScalarSlot) else type(number)
    return getattr(kind, "__name__", str(kind).removeprefix("torch."))


@dataclass
class _Sum:
    """Compiles for one cause at one line."""

    cause: Cause
    compiles: int = 0
    seconds: float = 0.0


_sums: dict[tuple[str, str], _Sum] = {}


def note_cost(cause: Cause, seconds: float) -> None:
    """A graph has been compiled or loaded for this."""
    key = cause.kind, cause.line
    if key not in _sums and len(_sums) >= _MOST_SUMMARISED:
        return
    known = _sums.setdefault(key, _Sum(cause))
    known.compiles += 1
    known.seconds += seconds


def summary() -> list[dict[str, Any]]:
    """What graphs were compiled for, as JSON values, the costliest first."""
    return [
        {
            "kind": one.cause.kind,
            "example": one.cause.text,
            "line": one.cause.line,
            "compiles": one.compiles,
            "seconds": one.seconds,
        }
        for one in sorted(_sums.values(), key=lambda one: -one.seconds)
    ]


def clear() -> None:
    """Forget all."""
    _forms.clear()
    _sums.clear()
