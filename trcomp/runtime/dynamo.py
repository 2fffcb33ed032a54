"""`torch.compile(backend="trcomp")`: traced graphs as regions of the step's graph.

    script --dynamo, AOTAutograd--> forward, backward, optimizer graphs --capture--> one node each

A traced graph is run once on placeholders (`regions.py`) and then recorded as one node per call.
All that is pending at the step's end is compiled together, so XLA sees the step as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from trcomp.runtime.traced.graph import TracedGraph
from trcomp.runtime.traced.optimizers import floats_as_inputs
from trcomp.runtime.traced.optimizers import register as register_optimizers
from trcomp.runtime.traced.rewrites import keep_keys, part_recomputed


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
