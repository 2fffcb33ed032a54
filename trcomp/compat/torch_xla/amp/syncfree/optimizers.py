"""SGD, Adam and AdamW that make or skip a step as a tensor on the device says.

They are torch's fused forms, which take that tensor; nothing is read by the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_FORMS = ("foreach", "fused", "capturable", "differentiable")


class _SyncFree(torch.optim.Optimizer):
    def __init__(self, params: Any, *args: Any, **kwargs: Any) -> None:
        if not any(kwargs.get(form) for form in _FORMS):
            kwargs["fused"] = True
        super().__init__(params, *args, **kwargs)

    def step(
        self, closure: Callable[[], Any] | None = None, found_inf: torch.Tensor | None = None
    ) -> Any:
        """Make a step, unless `found_inf` is not zero.

        Args:
            closure: Evaluates the model again and returns the loss.
            found_inf: A tensor of one number, on the device; None is zero.

        Raises:
            ValueError: `found_inf` is of one or more dimensions.
        """
        if found_inf is None:
            return super().step(closure)
        if found_inf.dim():
            raise ValueError(f"got found_inf of shape {list(found_inf.shape)}; it has no dimension")
        made: Any = self
        made.grad_scale, made.found_inf = None, found_inf.float()
        try:
            return super().step(closure)
        finally:
            del made.grad_scale, made.found_inf


class SGD(_SyncFree, torch.optim.SGD):
    """`torch.optim.SGD` whose `step` takes `found_inf`."""


class Adam(_SyncFree, torch.optim.Adam):
    """`torch.optim.Adam` whose `step` takes `found_inf`."""


class AdamW(_SyncFree, torch.optim.AdamW):
    """`torch.optim.AdamW` whose `step` takes `found_inf`."""
