"""An optimizer's step whose gradients are reduced over the ranks first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def reduced_step(
    optimizer: torch.optim.Optimizer,
    reduce: Callable[[], None],
    arguments: Mapping[str, Any] | None = None,
) -> Any:
    """Reduce and step; what a closure computes is reduced after each of its calls.

    Args:
        optimizer: What steps.
        reduce: Reduces the gradients of its parameters in place.
        arguments: Keyword arguments of `optimizer.step`, such as a closure.
    """
    arguments = dict(arguments or {})
    closure = arguments.get("closure")
    if closure is None:
        reduce()
    else:

        def reduced() -> Any:
            loss = closure()
            reduce()
            return loss

        arguments["closure"] = reduced
    return optimizer.step(**arguments)
