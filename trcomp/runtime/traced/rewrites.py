"""What is changed in traced graphs before they run: checkpoints' random states and barriers."""

from __future__ import annotations

import operator

import torch
from torch import fx
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import CheckpointPolicy

from trcomp.runtime import draws
from trcomp.runtime.device import DEVICE
from trcomp.runtime.recompute import barrier

_RECOMPUTED = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


def keep_keys(graph: fx.Graph) -> None:
    """Where torch keeps a generator's state for a recomputation, keep the draws' keys instead."""
    for node in graph.nodes:
        if node.target is run_and_save_rng_state:
            node.target = draws.keep
            for user in node.users:
                if user.target is operator.getitem and user.args[1] == 0:
                    _mark_as_keys(user)
        elif node.target is run_with_rng_state:
            node.target = draws.repeat
            _mark_as_keys(node.args[0])


def _mark_as_keys(node: fx.Node) -> None:
    with FakeTensorMode():
        node.meta["val"] = torch.empty(1, dtype=torch.int64, device=DEVICE)


def part_recomputed(graph: fx.Graph) -> None:
    """Put a barrier before what a checkpoint recomputes, lest XLA merge it with the forward pass.

    Merged, the first results would be kept in memory, and the checkpoint be undone.
    """
    recomputed = [n for n in graph.nodes if n.meta.get("recompute") in _RECOMPUTED]
    read = dict.fromkeys(
        source
        for node in recomputed
        for source in node.all_input_nodes
        if source.op == "placeholder" and isinstance(source.meta.get("val"), torch.Tensor)
    )
    sources = [n for n in read if n.meta["val"].device.type == DEVICE.type]
    if not sources:
        return
    with graph.inserting_after(list(graph.find_nodes(op="placeholder"))[-1]):
        copies = graph.call_function(barrier, (sources,))
    copies.meta["val"] = [source.meta["val"] for source in sources]
    with graph.inserting_after(copies):
        for place, source in enumerate(sources):
            copy = graph.call_function(operator.getitem, (copies, place))
            copy.meta["val"] = source.meta["val"]
            for node in recomputed:
                node.replace_input_with(source, copy)
