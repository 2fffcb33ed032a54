"""`extract_compiled_graph`: what torch's `openxla` backend calls with each graph that it traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._missing import missing
from ..experimental.eager import eager_mode_context

__getattr__ = missing(__name__)


def extract_compiled_graph(
    xla_model: torch.fx.GraphModule, xla_args: Sequence[Any]
) -> Callable[..., Any]:
    """A function that records the graph's operators; they are compiled with the step around them.

    Args:
        xla_model: The traced graph.
        xla_args: Arguments like those it will be called with.
    """

    def call(*args: Any) -> Any:
        with eager_mode_context(False):
            return xla_model(*args)

    return call
