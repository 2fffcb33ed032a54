"""Steps of a script that marks none: where what is recorded so far becomes one executable.

    optimizer.step()               ends a step; buffers are donated
    a backward pass of several     (gradient accumulation) ends one from the second step on, once
                                   the graph is large enough to be worth it
    a batch that arrives in no_grad   (evaluation) ends the batch before it

Each place is one that every step passes alike, so that the graphs are the same from step to step.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch.autograd import graph
from torch.optim.optimizer import register_optimizer_step_post_hook

from trcomp.runtime import ir
from trcomp.runtime.device import Process, is_on_device
from trcomp.runtime.sync import sync

_MIN_VALUES_OF_A_PASS = 500
"""Recorded values from which passes are compiled apart. Small ones are better off together."""
_MIN_VALUES_OF_A_BATCH = 32
"""More than what moving one batch, several tensors, may record."""


class _Passes:
    """Backward passes of the step."""

    depth = 0
    in_step = 0
    in_last_step = 1


def note_upload() -> None:
    """A host tensor is about to be moved to the device."""
    if not torch.is_grad_enabled() and ir.num_pending() >= _MIN_VALUES_OF_A_BATCH:
        sync()


def _note_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """After `optimizer.step()`."""
    if Process.shown is not None and _is_on_device(optimizer):
        _end_step()


def _end_step() -> None:
    if _Passes.in_step:
        _Passes.in_last_step = _Passes.in_step
        _Passes.in_step = 0
    sync()


def _is_on_device(optimizer: torch.optim.Optimizer) -> bool:
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    first = next(parameters, None)
    return first is not None and is_on_device(first)


def _note_pass() -> None:
    """After `loss.backward()`."""
    _Passes.in_step += 1
    is_last = _Passes.in_step == _Passes.in_last_step
    if not is_last and _accumulates() and ir.num_pending() >= _MIN_VALUES_OF_A_PASS:
        sync()


def _accumulates() -> bool:
    return max(_Passes.in_step, _Passes.in_last_step) > 1


def register() -> None:
    """Watch optimizers and backward passes."""
    register_optimizer_step_post_hook(_note_step)
    _watch_scalers()
    run = graph._engine_run_backward

    @wraps(run)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        _Passes.depth += 1
        try:
            result = run(*args, **kwargs)
        finally:
            _Passes.depth -= 1
        # Not within another pass, as checkpointing runs them, nor for `autograd.grad`.
        if Process.shown is not None and not _Passes.depth and kwargs.get("accumulate_grad"):
            _note_pass()
        return result

    graph._engine_run_backward = run_backward
    torch.autograd._engine_run_backward = run_backward  # type: ignore[attr-defined]


def _watch_scalers() -> None:
    """A step that a gradient scaler skips, as gradients overflowed, has ended too."""
    scaler: Any = torch.amp.GradScaler
    update = scaler.update

    @wraps(update)
    def updated(*args: Any, **kwargs: Any) -> None:
        update(*args, **kwargs)
        if Process.shown is not None and _Passes.in_step:
            _end_step()

    scaler.update = updated
