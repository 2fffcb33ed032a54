"""What a region's node stands for: a graph of its own, opened when the step is compiled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from trcomp.runtime.graph import Graph
from trcomp.runtime.ir import Node, Signature


@dataclass(frozen=True, eq=False)
class Mark:
    """In place of a rule: a node that the compiler treats by itself."""

    name: str
    collective: bool = False


ARGUMENT: Any = Mark("trcomp::argument")
"""Stands in a region's graph for a storage that a call brings; its argument is the position."""
REGION: Any = Mark("trcomp::region")
"""A call of a region; its argument is the `Body`."""
COLLECTIVE_REGION: Any = Mark("trcomp::region", collective=True)
"""The same where ranks meet within the region."""


class Constant(NamedTuple):
    """A number that is the same in every call."""

    number: float | int


@dataclass(frozen=True, eq=False)
class Body:
    """A region's graph; the same object for all regions that compute the same.

    Attributes:
        graph: Its leaves are tensors that the function made of host values.
        numbers: For each lifted number of the graph, in order: a constant, or the place in the
            numbers of the call.
        num_arguments: Operands of a call that come before the graph's leaves.
        origins: Where in the script a node of the graph comes from, for messages.
    """

    graph: Graph
    numbers: tuple[Constant | int, ...]
    num_arguments: int
    origins: dict[Node, str] = field(default_factory=dict)

    @cached_property
    def fingerprint(self) -> str:
        """The same text in every process for the same region."""
        from trcomp.runtime.persistent import fingerprint

        return f"{fingerprint(self.graph)} {self.numbers} {self.num_arguments}"

    def __repr__(self) -> str:
        return f"region of {len(self.graph.nodes) - self.num_arguments} operations"


def num_operations(graph: Graph) -> int:
    """How many operations a graph has, those within its regions counted one by one."""
    return sum(
        len(body.graph.nodes) - body.num_arguments if body is not None else 1
        for body in map(body_of, graph.nodes)
    )


def opened(graph: Graph) -> tuple[Signature, ...]:
    """What a graph computes, whether recorded operator by operator or as regions."""
    nodes = [node.signature for node in graph.nodes]
    return tuple(signature for signature, _ in operations(nodes, [""] * len(nodes)))


def operations(
    signatures: Iterable[Signature], lines: Iterable[str]
) -> Iterator[tuple[Signature, str]]:
    """What nodes compute, each with its line of the script; those within regions one by one.

    Args:
        signatures: Of a graph's nodes.
        lines: Of each.
    """
    for signature, line in zip(signatures, lines, strict=True):
        if is_region(signature):
            inner = [node.signature for node in signature.arguments[0].graph.nodes]
            yield from operations(inner, [one.line or line for one in inner])
        elif signature.rule is not ARGUMENT:
            yield signature, line


def body_of(node: Node) -> Body | None:
    """What a region's node stands for; None for other nodes."""
    signature = node.signature
    return signature.arguments[0] if is_region(signature) else None


def is_region(signature: Signature) -> bool:
    """Whether a node of this signature is a call of a region."""
    return signature.rule is REGION or signature.rule is COLLECTIVE_REGION


def text(graph: Graph) -> str:
    """A graph as text, with those of its regions behind it."""
    bodies = dict.fromkeys(body for node in graph.nodes if (body := body_of(node)) is not None)
    parts = [f"{body!r}\n{body.graph}" for body in bodies]
    return "\n\n".join([str(graph), *parts])
