"""The pending values as a graph: its nodes in order, its inputs, its outputs, and its key."""

from __future__ import annotations

import inspect
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import NamedTuple

from trcomp.runtime import precision
from trcomp.runtime.ir import Buffer, Node, Signature, Value
from trcomp.runtime.reductions import Partition

Place = tuple[int, int]
"""Where an operand comes from: (position of a node, output index), or (-1, index of a leaf)."""


class Collective(NamedTuple):
    """What the ranks of a group do together: as text, and the groups (None: all ranks)."""

    text: str
    groups: Partition


@dataclass(frozen=True)
class Graph:
    """A legal graph: every operand of a node is an output of an earlier one or a leaf.

    Attributes:
        nodes: In order of creation, which is topological.
        places: For each node, where each of its operands comes from.
        leaves: Buffers read, in order of first use.
        roots: Values to compute, in order of creation, and where each comes from.
        floats: Lifted float numbers, in order of use; `ints` likewise.
        donated: Indices of leaves that no tensor sees any more.
        key: Equal keys mean the same executable. Structural: signatures by identity, operands by
            place, leaves by shape and dtype; and how exact products are.
    """

    nodes: tuple[Node, ...]
    places: tuple[tuple[Place, ...], ...]
    leaves: tuple[Buffer, ...]
    values: tuple[Value, ...]
    roots: tuple[Place, ...]
    floats: tuple[float, ...]
    ints: tuple[int, ...]
    donated: tuple[int, ...]
    collective: bool
    key: Hashable

    def collectives(self) -> list[Collective]:
        """Its collectives in order: what must be the same on every rank of their groups."""
        found: list[Collective] = []
        for signature in (node.signature for node in self.nodes if node.signature.rule.collective):
            body = signature.arguments[0]
            inner = getattr(body, "graph", None)  # Of a region, whose collectives are its own.
            found += [_collective(signature)] if inner is None else inner.collectives()
        return found

    def values_without(self, node: Node) -> list[Value]:
        """The values that can be computed without a node."""
        tainted = [False] * len(self.nodes)
        for i, places in enumerate(self.places):
            tainted[i] = self.nodes[i] is node or any(p >= 0 and tainted[p] for p, _ in places)
        pairs = zip(self.values, self.roots, strict=True)
        return [value for value, (place, _) in pairs if not tainted[place]]

    def __str__(self) -> str:
        lines = []
        for i, leaf in enumerate(self.leaves):
            mark = " (donated)" if i in self.donated else ""
            lines.append(f"in{i}: {leaf.aval}{mark}")
        for i, (node, places) in enumerate(zip(self.nodes, self.places, strict=True)):
            operands = ", ".join(f"in{k}" if p < 0 else f"%{p}.{k}" for p, k in places)
            lines.append(f"%{i} = {node.signature!r} ({operands})")
        lines.append(
            "return " + ", ".join(f"in{k}" if p < 0 else f"%{p}.{k}" for p, k in self.roots)
        )
        return "\n".join(lines)


def build(values: list[Value], *, donate: bool) -> Graph:
    """The graph that computes these pending values.

    Args:
        values: Live pending values, in order of creation.
        donate: Whether buffers that no tensor sees any more may be overwritten; true at a step
            barrier only.
    """
    nodes = _reachable(values)
    position = {node: i for i, node in enumerate(nodes)}
    leaves: dict[Buffer, int] = {}
    floats: list[float] = []
    ints: list[int] = []
    places: list[tuple[Place, ...]] = []
    rows: list[Hashable] = []
    collective = False
    for node in nodes:
        row = tuple(
            (-1, leaves.setdefault(source, len(leaves)))
            if type(source) is Buffer
            else (position[source], index)  # type: ignore[index]
            for source, index in node.sources
        )
        places.append(row)
        rows.append((node.signature, row))
        collective = collective or node.signature.rule.collective
        for number in node.scalars:
            (floats if type(number) is float else ints).append(number)  # type: ignore[arg-type]
    roots = tuple((position[value.node], value.index) for value in values)  # type: ignore[index]
    donated = tuple(i for leaf, i in leaves.items() if leaf.owner() is None) if donate else ()
    avals = tuple(leaf.aval for leaf in leaves)
    return Graph(
        nodes=tuple(nodes),
        places=tuple(places),
        leaves=tuple(leaves),
        values=tuple(values),
        roots=roots,
        floats=tuple(floats),
        ints=tuple(ints),
        donated=donated,
        collective=collective,
        key=(tuple(rows), roots, avals, donated, precision.chosen()),
    )


@cache
def _collective(signature: Signature) -> Collective:
    """By convention a collective's rule takes its groups last."""
    names = list(inspect.signature(signature.rule.lower).parameters)[1:-1]
    *arguments, groups = signature.arguments
    words = [
        f"{name}={word}"
        for name, word in zip(names, arguments, strict=True)
        if type(word) in (str, int) and name != "bucket_bytes"
    ]
    return Collective(f"{signature!r} ({', '.join(words)})", groups)


def _reachable(values: list[Value]) -> list[Node]:
    """Every node these values need, in order of creation."""
    seen: set[Node] = set()
    stack: list[Node] = [value.node for value in values if value.node is not None]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        stack += [
            source for source, _ in node.sources if type(source) is Node and source not in seen
        ]
    return sorted(seen, key=attrgetter("seq"))
