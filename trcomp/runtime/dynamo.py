"""`torch.compile(backend="trcomp")`: traced graphs as regions of the step's graph.

    script --dynamo, AOTAutograd--> forward, backward, optimizer graphs --capture--> one node each

A traced graph is run once on placeholders (`regions.py`) and then recorded as one node per call.
All that is pending at the step's end is compiled together, so XLA sees the step as one.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._dynamo import trace_rules
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from trcomp import flags
from trcomp.runtime.device import NAME
from trcomp.runtime.ir import Node, NothingToComputeError, tick
from trcomp.runtime.recording import is_device_tensor, lifts_offset
from trcomp.runtime.regions import CannotCaptureError, Region, capture, layout
from trcomp.runtime.storage import value_of
from trcomp.runtime.traced_optimizers import floats_as_inputs
from trcomp.runtime.traced_optimizers import register as register_optimizers
from trcomp.runtime.traced_parts import Part, plan_parts
from trcomp.runtime.traced_rewrites import keep_keys, part_recomputed


class TracedGraph:
    """One graph of AOTAutograd's, called with its inputs."""

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module
        self._refused: set[str] = set()
        self._inputs = [n.name for n in module.graph.nodes if n.op == "placeholder"]
        (self._output,) = (n for n in module.graph.nodes if n.op == "output")
        self._plan()

    def _plan(self) -> None:
        self._parts = [_PartCall(part) for part in plan_parts(self._module, self._refused)]

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        made = dict(zip(self._inputs, arguments, strict=True))
        arguments.clear()
        for part in self._parts:
            made |= part(made)
        refused = [part.refused for part in self._parts if part.refused is not None]
        if refused:
            self._refused.update(refused)
            self._plan()
        return fx.node.map_arg(self._output.args[0], lambda node: made[node.name])


class _PartCall:
    """Calls one part of a traced graph, as a region if it is one."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._regions: dict[Hashable, Region | None] = {}
        self.refused: str | None = None
        """Name of a node that cannot be part of a region."""

    def __call__(self, made: dict[str, Any]) -> dict[str, Any]:
        arguments = [made[name] for name in self._part.inputs]
        if self._part.is_region:
            _detach_places(arguments, self._part.written)
        results = self._results(arguments)
        return dict(zip(self._part.outputs, results, strict=True))

    def _results(self, arguments: list[Any]) -> Sequence[Any]:
        if not self._part.is_region or flags.EAGER.get() or flags.CHECK.get():
            return self._run(arguments)
        key = tuple(map(_key, arguments))
        if key not in self._regions:
            self._regions[key] = self._capture(arguments)
        region = self._regions[key]
        return self._run(arguments) if region is None else region(arguments)

    def _capture(self, arguments: list[Any]) -> Region | None:
        recorder = _Recorder(self._part.module)
        try:
            return capture(lambda given: recorder.run(*given), arguments, recorder.origin)
        except (CannotCaptureError, NothingToComputeError):
            self.refused = recorder.failed
            return None

    def _run(self, arguments: list[Any]) -> Sequence[Any]:
        """Operator by operator, each recorded by itself."""
        with torch.no_grad(), torch._C._DisableAutocast():
            return self._part.module(*arguments)


class _Recorder(fx.Interpreter):
    """Runs a part on placeholders and notes which of its nodes records what."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.failed: str | None = None
        """The node that could not be recorded."""
        self._started: list[int] = []
        self._ran: list[fx.Node] = []

    def run_node(self, n: fx.Node) -> Any:
        self._started.append(tick())
        self._ran.append(n)
        try:
            with torch._C._DisableAutocast():
                return super().run_node(n)
        except NothingToComputeError:
            self.failed = n.name
            raise

    def origin(self, node: Node) -> str | None:
        """Where in the script a recorded node was called, as a sentence."""
        place = bisect_left(self._started, node.seq) - 1
        frame = None if place < 0 else _script_frame(self._ran[place].stack_trace or "")
        if frame is None:
            return None
        path, line, function, code = frame
        return (
            f", called at {path}:{line} in {function}: {code}. To go on without it, put "
            "@torch.compiler.disable on that function: it then runs operator by operator."
        )


_FRAME = re.compile(r'File "(.+?)", line (\d+), in (.+)\n\s*(.*)')
_TORCH = str(Path(torch.__file__).parent)


def _script_frame(trace: str) -> tuple[str, ...] | None:
    """The innermost frame of a traceback that is not torch's own."""
    frames = [match.groups() for match in _FRAME.finditer(trace)]
    outside = [frame for frame in frames if not frame[0].startswith(_TORCH)]
    return next(reversed(outside or frames), None)


def _detach_places(arguments: list[Any], written: frozenset[int]) -> None:
    """Copy each argument that begins somewhere in a buffer, unless it is written.

    Where it begins is then a number of the copy, and not what the region depends on: a script may
    walk along a data set.
    """
    for i, argument in enumerate(arguments):
        if i in written or not is_device_tensor(argument) or not argument.storage_offset():
            continue
        if lifts_offset(argument, value_of(argument)):
            arguments[i] = argument.detach().clone()


def _key(argument: Any) -> Hashable:
    """What a region depends on in an argument of a call."""
    if not isinstance(argument, torch.Tensor):
        return float if type(argument) is float else (type(argument), argument)
    if argument.device.type == NAME:
        return layout(argument)
    return argument.size(), argument.dtype


def compile_traced(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A compiler of graphs for AOTAutograd."""
    keep_keys(module.graph)
    graph = TracedGraph(module)

    def call(arguments: list[Any]) -> Sequence[Any]:
        return graph(arguments)

    setattr(call, "_boxed_call", True)  # noqa: B010 - it takes its arguments as one list
    return call


def compile_module(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A traced graph as a function of its inputs, for inference: it takes no part in autograd.

    Args:
        module: Traced by dynamo, or by AOTAutograd.
        inputs: As for a backend; only what the module knows of them is used.
    """
    call = compile_traced(module, inputs)

    def function(*arguments: Any) -> Any:
        return call(list(arguments))

    return function


def _compile_backward(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    part_recomputed(module.graph)
    return compile_traced(module, inputs)


for _name in ("trcomp", "jax", "jaxlib"):
    # Where traced code breaks off, dynamo would go on to trace the device's own kernels.
    trace_rules.add(_name)
register_optimizers()
_through_autograd = aot_autograd(
    fw_compiler=compile_traced,
    bw_compiler=_compile_backward,
    partition_fn=min_cut_rematerialization_partition,
    keep_inference_input_mutations=True,
)


def compile_differentiable(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A graph that dynamo traced as a function of its inputs that autograd derives.

    Args:
        module: Traced by dynamo.
        inputs: Fake or real tensors, and numbers.
    """
    with floats_as_inputs():
        return _through_autograd(module, inputs)
