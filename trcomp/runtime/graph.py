"""The pending values as a graph: its nodes in order, its inputs, its outputs, and its key."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter, lt
from typing import Any, NamedTuple

from trcomp.runtime import precision, source_lines
from trcomp.runtime.ir import Buffer, Node, Signature, Value
from trcomp.runtime.reductions import Partition

Place = tuple[int, int]
"""Where an operand comes from: (position of a node, output index), or (-1, index of a leaf)."""


class Key:
    """What names an executable: thousands of parts, hashed once and mostly compared by identity."""

    __slots__ = ("_hash", "parts")

    def __init__(self, *parts: Hashable) -> None:
        self.parts = parts
        self._hash = hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Key) and self.parts == other.parts)


class Collective(NamedTuple):
    """What the ranks of a group do together: as text, the groups (None: all ranks), the line."""

    text: str
    groups: Partition
    line: str = ""


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
    key: Key

    def collectives(self) -> list[Collective]:
        """Its collectives in order: what must be the same on every rank of their groups."""
        found: list[Collective] = []
        for node in (node for node in self.nodes if node.signature.rule.collective):
            body = node.signature.arguments[0]
            inner = getattr(body, "graph", None)  # Of a region, whose collectives are its own.
            if inner is None:
                found.append(_collective(node.signature)._replace(line=source_lines.of(node)))
            else:
                found += inner.collectives()
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


class _Form(NamedTuple):
    """What steps that repeat have in common: a graph without its nodes, buffers and numbers."""

    graph: Graph
    signatures: tuple[Signature, ...]
    avals: tuple[Hashable, ...]


_MAX_FORMS = 64
_forms: dict[Hashable, _Form] = {}
"""The last graphs, by what is seen at once of those that may be like them."""


def build(values: list[Value], *, donate: bool) -> Graph:
    """The graph that computes these pending values.

    Args:
        values: Live pending values, in order of creation.
        donate: Whether buffers that no tensor sees any more may be overwritten; true at a step
            barrier only.
    """
    last = values[-1].node.signature if values and values[-1].node else None
    sight = (last, len(values), donate, precision.chosen())
    form = _forms.get(sight)
    graph = None if form is None else _again(form, values, donate)
    if graph is None:
        graph = _anew(values, donate)
        if sight not in _forms and len(_forms) >= _MAX_FORMS:
            del _forms[next(iter(_forms))]
        _forms[sight] = _Form(
            replace(graph, nodes=(), leaves=(), values=(), floats=(), ints=()),
            tuple(node.signature for node in graph.nodes),
            tuple(leaf.aval for leaf in graph.leaves),
        )
    return graph


def _again(form: _Form, values: list[Value], donate: bool) -> Graph | None:
    """The graph of these values if it has this form: one comparison, nothing sorted or hashed."""
    like, signatures, avals = form
    nodes: list[Any] = [None] * len(signatures)
    leaves: list[Any] = [None] * len(avals)
    for value, (position, index) in zip(values, like.roots, strict=True):
        if value.index != index or nodes[position] not in (None, value.node):
            return None
        nodes[position] = value.node
    # Each node comes before those that read it, so from the last on each is known when it is due.
    for position in range(len(signatures) - 1, -1, -1):
        node, places = nodes[position], like.places[position]
        if type(node) is not Node or node.signature is not signatures[position]:
            return None
        if len(node.sources) != len(places):
            return None
        for (source, index), (place, k) in zip(node.sources, places):  # noqa: B905
            if place < 0:
                known, leaves[k] = leaves[k], source
            else:
                known, nodes[place] = nodes[place], source
                if index != k:
                    return None
            if known is not None and known is not source:
                return None
    return _filled(form, values, nodes, leaves, donate)


def _filled(
    form: _Form, values: list[Value], nodes: list[Node], leaves: list[Buffer], donate: bool
) -> Graph | None:
    """The graph of a form with these nodes, unless they are in another order or read otherwise."""
    in_order = all(map(lt, map(_seq, nodes), map(_seq, nodes[1:])))
    if not in_order or len(set(leaves)) < len(leaves):
        return None
    if any(type(leaf) is not Buffer for leaf in leaves) or form.avals != tuple(map(_aval, leaves)):
        return None
    donated = _unseen(leaves) if donate else ()
    if donated != form.graph.donated:
        return None
    floats, ints = _numbers(nodes)
    return replace(
        form.graph,
        nodes=tuple(nodes),
        leaves=tuple(leaves),
        values=tuple(values),
        floats=floats,
        ints=ints,
    )


_seq = attrgetter("seq")
_aval = attrgetter("aval")


def _unseen(leaves: Iterable[Buffer]) -> tuple[int, ...]:
    """Which of these buffers no tensor sees any more."""
    return tuple(i for i, leaf in enumerate(leaves) if leaf.owner() is None)


def _numbers(nodes: Iterable[Node]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """The nodes' lifted numbers, floats and ints apart."""
    floats: list[float] = []
    ints: list[int] = []
    for node in nodes:
        for number in node.scalars:
            (floats if type(number) is float else ints).append(number)  # type: ignore[arg-type]
    return tuple(floats), tuple(ints)


def _anew(values: list[Value], donate: bool) -> Graph:
    nodes = _reachable(values)
    position = {node: i for i, node in enumerate(nodes)}
    leaves: dict[Buffer, int] = {}
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
    roots = tuple((position[value.node], value.index) for value in values)  # type: ignore[index]
    donated = _unseen(leaves) if donate else ()
    avals = tuple(leaf.aval for leaf in leaves)
    floats, ints = _numbers(nodes)
    return Graph(
        nodes=tuple(nodes),
        places=tuple(places),
        leaves=tuple(leaves),
        values=tuple(values),
        roots=roots,
        floats=floats,
        ints=ints,
        donated=donated,
        collective=collective,
        key=Key(tuple(rows), roots, avals, donated, precision.chosen()),
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
    return sorted(seen, key=_seq)
