"""`extract_compiled_graph`: what torch's `openxla` backend calls with each graph that it traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from trcomp import flags

from .._missing import missing
from ..experimental.eager import eager_mode_context

__getattr__ = missing(__name__)


def extract_compiled_graph(
    xla_model: torch.fx.GraphModule, xla_args: Sequence[Any]
) -> Callable[..., Any]:
    """A function that records the graph as one node; it is compiled with the step around it.

    Args:
        xla_model: The traced graph.
        xla_args: Arguments like those it will be called with.
    """
    function: Callable[..., Any] = xla_model
    if flags.ENABLED.get():
        from trcomp.runtime.dynamo import compile_module  # torch's tracer takes seconds to load

        function = compile_module(xla_model, xla_args)

    def call(*args: Any) -> Any:
        with eager_mode_context(False):
            return function(*args)

    return call
