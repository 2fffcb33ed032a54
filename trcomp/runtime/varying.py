"""Which inputs of a graph that was compiled again came in other shapes, and in which.

Graphs that differ only in shapes have one outline: the same operations on operands from the same
places. What is kept of each is the shapes that its inputs have had.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trcomp.runtime import source_lines
from trcomp.runtime.bodies import num_operations
from trcomp.runtime.graph import Graph

_FROM_OPERATIONS = 20
"""Smaller graphs compile in no time."""
_MAX_SHAPES = 64
"""Kept of each input."""

Shape = tuple[int, ...]


class Change(NamedTuple):
    """An input that came in another shape; it had had `seen` before."""

    place: int
    dtype: str
    was: Shape
    now: Shape
    seen: int = 1


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


def note(graph: Graph) -> list[Change]:
    """A graph is being compiled; which inputs differ from one before, if only those do."""
    if num_operations(graph) < _FROM_OPERATIONS:
        return []
    avals = tuple(leaf.aval for leaf in graph.leaves)
    known = _outlines.setdefault(hash(_outline(graph)), _Outline(len(graph.nodes), avals))
    if known.first is avals or len(known.first) != len(avals):
        return []
    return _compare(known, avals)


def _outline(graph: Graph) -> Hashable:
    names = (node.signature.rule.name for node in graph.nodes)
    return tuple(zip(names, graph.places, strict=True)), graph.roots


def _compare(known: _Outline, avals: tuple[Any, ...]) -> list[Change]:
    changed = []
    for place, ((was, dtype), (now, _)) in enumerate(zip(known.first, avals, strict=True)):
        shapes = known.shapes.get(place, [was])
        if now in shapes:
            continue
        if len(shapes) < _MAX_SHAPES:
            known.shapes[place] = [*shapes, now]
        changed.append(Change(place, str(dtype), shapes[-1], now, len(shapes)))
    if changed:
        known.compiles += 1
        known.line = known.line or source_lines.here()
    return changed


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
