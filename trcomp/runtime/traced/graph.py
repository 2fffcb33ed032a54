"""A traced graph as something to call: each of its parts a region, or run operator by operator."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_flatten, tree_structure, tree_unflatten

from trcomp import flags
from trcomp.runtime import overdue
from trcomp.runtime.ir import NothingToComputeError, num_pending
from trcomp.runtime.placeholders import CannotCaptureError
from trcomp.runtime.recording import is_device_tensor, lifts_offset
from trcomp.runtime.regions import Region, capture, layouts
from trcomp.runtime.traced.parts import Part, plan_parts
from trcomp.runtime.traced.recorder import Recorder


class TracedGraph:
    """One graph that dynamo or AOTAutograd traced, called with its inputs.

    What its parts pass on lies in one list: the inputs first, then each part's results.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module
        self._refused: set[str] = set()
        (output,) = (node for node in module.graph.nodes if node.op == "output")
        self._returned, self._form = tree_flatten(output.args[0])
        self._is_flat = self._form == tree_structure([0] * len(self._returned)) or (
            self._form == tree_structure((0,) * len(self._returned))
        )
        self._plan()

    def _plan(self) -> None:
        names = [node.name for node in self._module.graph.nodes if node.op == "placeholder"]
        self._parts = []
        for part in plan_parts(self._module, self._refused):
            self._parts.append(_PartCall(part, [names.index(name) for name in part.inputs]))
            names += part.outputs
        self._places = [
            names.index(node.name) if isinstance(node, fx.Node) else None for node in self._returned
        ]

    def __call__(self, arguments: list[Any]) -> Any:
        made = list(arguments)
        arguments.clear()
        for part in self._parts:
            made += part(made)
        results = [
            fixed if place is None else made[place]
            for place, fixed in zip(self._places, self._returned, strict=True)
        ]
        refused = [part.refused for part in self._parts if part.refused is not None]
        if refused:
            self._refused.update(refused)
            self._plan()
        return results if self._is_flat else tree_unflatten(results, self._form)


class _PartCall:
    """Calls one part of a traced graph, as a region if it is one."""

    def __init__(self, part: Part, places: Sequence[int]) -> None:
        self._part = part
        self._places = places
        self._regions: dict[Hashable, Region | None] = {}
        self._tensors: list[int] | None = None
        """Positions of the device tensors among the inputs: the same in each call."""
        self._others: list[int] = []
        self.refused: str | None = None
        """Name of a node that cannot be part of a region."""

    def __call__(self, made: list[Any]) -> Sequence[Any]:
        arguments = [made[place] for place in self._places]
        if not self._part.is_region or flags.EAGER.get() or flags.CHECK.get():
            return self._run(arguments)
        if self._tensors is None:
            self._sort(arguments)
        tensors = [arguments[i] for i in self._tensors or ()]
        storages = [tensor.untyped_storage() for tensor in tensors]
        offsets = [tensor.storage_offset() for tensor in tensors]
        if any(offsets):
            self._detach_places(arguments, tensors, storages, offsets)
        key = (
            tuple(offsets),
            layouts(tensors, storages),
            *[_kind(arguments[i]) for i in self._others],
        )
        if key not in self._regions:
            self._regions[key] = self._capture(arguments)
        region = self._regions[key]
        if region is None:
            return self._run(arguments)
        if num_pending() >= overdue.LIMIT:
            overdue.cuts_before(region.signature)
        return region(arguments, storages)

    def _sort(self, arguments: Sequence[Any]) -> None:
        is_tensor = [is_device_tensor(a) for a in arguments]
        self._tensors = [i for i, yes in enumerate(is_tensor) if yes]
        self._others = [i for i, yes in enumerate(is_tensor) if not yes]

    def _detach_places(
        self,
        arguments: list[Any],
        tensors: list[torch.Tensor],
        storages: list[Any],
        offsets: list[int],
    ) -> None:
        """Copy each tensor that begins somewhere in a buffer, unless the part writes it.

        Where it begins is then a number of the copy, and not what the region depends on: a script
        may walk along a data set.
        """
        for i, tensor in enumerate(tensors):
            if not offsets[i] or not lifts_offset(tensor, storages[i].value):
                continue
            place = (self._tensors or ())[i]
            if place not in self._part.written:
                arguments[place] = tensors[i] = tensor.detach().clone()
                storages[i] = tensors[i].untyped_storage()
                offsets[i] = 0

    def _capture(self, arguments: list[Any]) -> Region | None:
        recorder = Recorder(self._part.module)
        try:
            return capture(lambda given: recorder.run(*given), arguments, recorder.origin)
        except Exception as error:
            # What fails here for a reason of the script's own fails again as it runs by itself.
            self.refused = recorder.failed
            if not isinstance(error, (CannotCaptureError, NothingToComputeError)):
                _tell(recorder.failed, error)
            return None

    def _run(self, arguments: list[Any]) -> Sequence[Any]:
        """Operator by operator, each recorded by itself."""
        with torch.no_grad(), torch._C._DisableAutocast():
            return self._part.module(*arguments)


def _tell(name: str | None, error: Exception) -> None:
    reason = str(error).partition("\n")[0] or type(error).__name__
    print(
        f"trcomp: {name or 'a traced graph'} is recorded by itself in each call, not compiled with "
        f"what is around it: {reason}",
        file=sys.stderr,
    )


def _kind(argument: Any) -> Hashable:
    """What a region depends on in an argument that is no device tensor."""
    if isinstance(argument, torch.Tensor):
        return argument.size(), argument.dtype
    return float if type(argument) is float else (type(argument), argument)
