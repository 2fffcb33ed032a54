"""`torch.amp.GradScaler("xla")`: a step that overflowed is skipped on the device, unread.

torch asks the host whether to step: a read in the middle of every training step, which would cut
its graph in two. Its fused optimizers take the answer as a tensor instead. So where a script leaves
the form of SGD, Adam or AdamW to torch, a scaler takes the fused one; for any other optimizer the
answer is read, and counted as an early sync.
"""

from __future__ import annotations

from typing import Any

import torch

from trcomp.runtime.device import is_on_device

_FUSABLE = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
_read_and_step = torch.amp.GradScaler._maybe_opt_step


def _step_unread(
    self: torch.amp.GradScaler,
    optimizer: torch.optim.Optimizer,
    optimizer_state: dict[str, Any],
    *args: Any,
    **kwargs: Any,
) -> float | None:
    """Step with unscaled gradients, unless one of them overflowed."""
    found = list(optimizer_state["found_inf_per_device"].values())
    on_device = all(is_on_device(tensor) for tensor in found)
    if not on_device or not _is_fusable(optimizer):
        return _read_and_step(self, optimizer, optimizer_state, *args, **kwargs)
    _fuse(optimizer)
    # What torch itself hands to a fused optimizer whose gradients are unscaled already.
    optimizer.grad_scale = None  # type: ignore[attr-defined]
    optimizer.found_inf = sum(found)  # type: ignore[attr-defined]
    try:
        result: float | None = optimizer.step(*args, **kwargs)
        return result
    finally:
        del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]


def _is_fusable(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer has a fused form and the script asked for no other."""
    if type(optimizer) not in _FUSABLE:
        return False
    return all(
        group["fused"] or not _names_a_form(group)
        for group in optimizer.param_groups
        if any(is_on_device(p) and p.is_floating_point() for p in group["params"])
    )


def _names_a_form(group: dict[str, Any]) -> bool:
    asked = group["fused"] is False or group["foreach"] is not None
    return bool(asked or group["differentiable"] or group.get("capturable"))


def _fuse(optimizer: torch.optim.Optimizer) -> None:
    """Take the fused form from here on; its step counts live on the device."""
    for group in optimizer.param_groups:
        if group["fused"]:
            continue
        group["fused"] = True
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if isinstance(step := state.get("step"), torch.Tensor):
                state["step"] = step.to(parameter.device)


def register() -> None:
    """Let gradient scalers step without a read."""
    torch.amp.GradScaler._maybe_opt_step = _step_unread  # type: ignore[method-assign]
