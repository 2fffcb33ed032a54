"""`torch_xla.amp.GradScaler`: gradient scaling whose overflows are not read by the host."""

from __future__ import annotations

from typing import Any

import torch

import trcomp.runtime as rt


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler` for this rank's device.

    An optimizer of `torch_xla.amp.syncfree`, and torch's own SGD, Adam and AdamW, skip a step that
    overflowed without a read. Others need `use_zero_grad` for that.

    Args:
        init_scale: The first scale.
        growth_factor: By what it grows after `growth_interval` steps without overflow.
        backoff_factor: By what it shrinks after an overflow.
        growth_interval: Steps.
        enabled: Whether to scale at all.
        use_zero_grad: Whether a step that overflowed is made with zeros for gradients, not skipped.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        use_zero_grad: bool = False,
    ) -> None:
        super().__init__(
            rt.device().type, init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )
        self.use_zero_grad = use_zero_grad

    def _maybe_opt_step(
        self,
        optimizer: torch.optim.Optimizer,
        optimizer_state: dict[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> float | None:
        if not self.use_zero_grad:
            return super()._maybe_opt_step(optimizer, optimizer_state, *args, **kwargs)
        found = torch.stack(list(optimizer_state["found_inf_per_device"].values())).sum()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.masked_fill_(found > 0, 0.0)
        loss: float | None = optimizer.step(*args, **kwargs)
        return loss
