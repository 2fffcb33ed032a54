"""Why a graph was compiled again: which of its inputs came in another shape, and what to do.

Graphs that differ only in shapes have one outline: the same operations on operands from the same
places. What is kept of each is the shapes that its inputs have had.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from trcomp.runtime.bodies import num_operations
from trcomp.runtime.capture.code import script_frame
from trcomp.runtime.graph import Graph

ADVICE = "pad to one length, or to a few (buckets), and drop or pad the last batch"
_FROM_OPERATIONS = 20
"""Smaller graphs compile in no time."""
_MAX_SHAPES = 64
"""Kept of each input."""

Shape = tuple[int, ...]


@dataclass
class _Outline:
    """Graphs alike but for shapes."""

    num_operations: int
    first: tuple[Any, ...]
    compiles: int = 1
    line: str = ""
    shapes: dict[int, list[Shape]] = field(default_factory=dict)
    """Of each input that has had several, in order of appearance."""


_outlines: dict[int, _Outline] = {}


def note(graph: Graph) -> str:
    """A graph is being compiled; says why if one like it has been, else nothing."""
    if num_operations(graph) < _FROM_OPERATIONS:
        return ""
    avals = tuple(leaf.aval for leaf in graph.leaves)
    known = _outlines.setdefault(hash(_outline(graph)), _Outline(len(graph.nodes), avals))
    if known.first is avals or len(known.first) != len(avals):
        return ""
    return _compare(known, avals)


def _outline(graph: Graph) -> Hashable:
    names = (node.signature.rule.name for node in graph.nodes)
    return tuple(zip(names, graph.places, strict=True)), graph.roots


def _compare(known: _Outline, avals: tuple[Any, ...]) -> str:
    changed = []
    for place, ((was, dtype), (now, _)) in enumerate(zip(known.first, avals, strict=True)):
        shapes = known.shapes.get(place, [was])
        if now in shapes:
            continue
        if len(shapes) < _MAX_SHAPES:
            known.shapes[place] = [*shapes, now]
        changed.append(f"input {place} ({dtype}) was {_text(shapes[-1])} and is {_text(now)}")
    if not changed:
        return ""
    known.compiles += 1
    known.line = known.line or script_line()
    more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
    advice = f"; {ADVICE}" if known.compiles == 2 else ""
    return f"{changed[0]}{more}{advice}"


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "a number"


def script_line() -> str:
    """The line of the script that this is for; empty where no script is running."""
    frame = script_frame(sys._getframe(1))
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def summary() -> list[dict[str, Any]]:
    """Each graph that was compiled for several shapes, the most often compiled first."""
    found = [
        {
            "operations": outline.num_operations,
            "compiles": outline.compiles,
            "line": outline.line,
            "inputs": [
                {"input": place, "dtype": str(outline.first[place][1]), "shapes": shapes}
                for place, shapes in outline.shapes.items()
            ],
        }
        for outline in _outlines.values()
        if outline.shapes
    ]
    return sorted(found, key=lambda graph: -graph["compiles"])


def clear() -> None:
    """Forget all."""
    _outlines.clear()
