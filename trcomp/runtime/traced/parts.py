"""A traced graph cut into parts: regions, and what runs operator by operator.

    Adam's counters on the CPU ──> part 0: adds on the host ──numbers──> part 1: a region

Whatever computes on host tensors runs there in each call, and what it makes enters the regions as
numbers. So does what reads a device value, and what the device cannot record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from trcomp.runtime.device import NAME

_aten = torch.ops.aten
_TAKE_HOST_NUMBERS = {
    overload
    for packet in ("_foreach_addcdiv", "_foreach_addcmul", "_foreach_addcdiv_", "_foreach_addcmul_")
    for overload in (getattr(_aten, packet).Tensor,)
}
"""Operators on the device that read a host tensor's numbers one by one."""


@dataclass(frozen=True)
class Part:
    """Some of a graph's nodes, as a module of their own.

    Attributes:
        module: Called with the inputs; returns a list of the outputs.
        inputs: Names of the nodes whose results it takes.
        outputs: Names of the nodes whose results others take.
        is_region: Whether it computes on the device alone.
        written: Positions of the inputs that it changes in place.
    """

    module: fx.GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    is_region: bool
    written: frozenset[int]


def plan_parts(module: fx.GraphModule, refused: Collection[str]) -> list[Part]:
    """The parts of a graph in the order in which they run.

    Args:
        module: With fake results in its nodes' `meta["val"]`.
        refused: Names of nodes that cannot be recorded into a region.
    """
    levels = _Levels(module.graph, refused).levels
    groups: dict[int, list[fx.Node]] = {}
    for node, level in levels.items():
        groups.setdefault(level, []).append(node)
    return [_part(module, groups[level], level % 2 == 1) for level in sorted(groups)]


class _Levels:
    """Each computing node's part: even ones run operator by operator, odd ones are regions."""

    def __init__(self, graph: fx.Graph, refused: Collection[str]) -> None:
        self.levels: dict[fx.Node, int] = {}
        self._fed: set[fx.Node] = set()
        """Nodes whose host results differ from call to call."""
        self._refused = refused
        for node in graph.nodes:
            if node.op == "placeholder":
                if _is_host_tensor(_value(node)):
                    self._fed.add(node)
            elif node.op not in ("get_attr", "output"):
                self._place(node)

    def _place(self, node: fx.Node) -> None:
        odd = int(not self._runs_alone(node))
        earlier = [self.levels[n] for n in self._comes_after(node) if n in self.levels]
        self.levels[node] = max((n if n % 2 == odd else n + 1 for n in earlier), default=odd)

    def _comes_after(self, node: fx.Node) -> Iterator[fx.Node]:
        """What a node reads; before a node that writes, also whoever reads its target."""
        yield from node.all_input_nodes
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            for target in node.all_input_nodes:
                yield from (user for user in target.users if user < node)

    def _runs_alone(self, node: fx.Node) -> bool:
        made = [v for v in tree_leaves(_value(node)) if isinstance(v, torch.Tensor)]
        fed = [n for n in node.all_input_nodes if n in self._fed]
        if any(v.device.type != NAME for v in made) or (fed and not made):
            is_random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            returned = any(user.op == "output" for user in node.users)
            reads_device = any(_is_device_tensor(_value(n)) for n in node.all_input_nodes)
            if fed or is_random or returned or reads_device:
                self._fed.add(node)
                return True
            return False
        if node.name in self._refused or node.kwargs.get("generator") is not None:
            return True
        if node.target is _aten._local_scalar_dense.default:
            return True
        return node.target not in _TAKE_HOST_NUMBERS and any(_has_extent(n) for n in fed)


def _value(node: fx.Node) -> Any:
    """A fake of what a node makes; dynamo's own graphs call it an example."""
    return node.meta.get("val", node.meta.get("example_value"))


def _is_host_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type != NAME


def _is_device_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def _has_extent(node: fx.Node) -> bool:
    return any(isinstance(v, torch.Tensor) and v.dim() for v in tree_leaves(_value(node)))


def _part(module: fx.GraphModule, nodes: list[fx.Node], is_region: bool) -> Part:
    """A module of some nodes, with what they read as inputs."""
    graph = fx.Graph()
    inside = set(nodes)
    read = dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in inside)
    copies: dict[fx.Node, fx.Node] = {}
    inputs = [n for n in read if n.op != "get_attr"]
    for source in inputs:
        copies[source] = graph.placeholder(source.name)
    for source in read:
        if source.op == "get_attr":
            copies[source] = graph.node_copy(source)
    for node in nodes:
        copies[node] = graph.node_copy(node, lambda n: copies[n])
    outputs = [n for n in nodes if any(user not in inside for user in n.users)]
    graph.output([copies[n] for n in outputs])
    return Part(
        fx.GraphModule(module, graph),
        tuple(n.name for n in inputs),
        tuple(n.name for n in outputs),
        is_region,
        frozenset(i for i, n in enumerate(inputs) if any(_writes(user, n) for user in nodes)),
    )


def _writes(node: fx.Node, target: fx.Node) -> bool:
    """Whether a node may change its input; only an operator's schema says that it does not."""
    if target not in node.all_input_nodes:
        return False
    schema = getattr(node.target, "_schema", None)
    return schema is None or schema.is_mutable
