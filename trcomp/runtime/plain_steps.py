"""Where steps end without XLA: at the script's barriers, or where its optimizer has stepped."""

from __future__ import annotations

import time
import weakref
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from trcomp.runtime.metrics import counters


class _Steps:
    has_barriers = False
    optimizer: weakref.ref[torch.optim.Optimizer] | None = None
    """The first that stepped: of several, each steps once a step."""


def register() -> None:
    """Count the steps of a script that has no barriers by its optimizer's."""
    register_optimizer_step_post_hook(_note_optimizer)


def note_barrier() -> None:
    """A step has ended. The script has barriers, so nothing else is a step any more."""
    if not _Steps.has_barriers and _Steps.optimizer is not None:
        counters.steps = 0
        counters.step_marks.clear()
    _Steps.has_barriers = True
    _mark()


def _note_optimizer(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if _Steps.has_barriers:
        return
    if _Steps.optimizer is None or _Steps.optimizer() is None:
        _Steps.optimizer = weakref.ref(optimizer)
    if _Steps.optimizer() is optimizer:
        _mark()
        counters.end_script()


def _mark() -> None:
    counters.note_step(time.perf_counter())
