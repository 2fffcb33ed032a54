"""Host time of a training step: recorded, compiled with torch.compile, captured as a whole.

Processor time of the script's thread, sync's included, as in `compiled`.
Run: python -m benchmarks step
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import trcomp
from benchmarks.compiled import host_times, told
from benchmarks.models import MODELS, Model, Trainer

_MEASURED = ("vit", "bert", "resnet50-64px")


def _forms(model: Model) -> dict[str, Callable[[], Any]]:
    """One model's step in each form, each with a model of its own."""
    torch._dynamo.reset()
    compiled = Trainer(model, "xla")
    compiled.model = torch.compile(compiled.model, backend="trcomp")  # type: ignore[assignment]
    compiled.update = torch.compile(compiled.update, backend="trcomp")
    return {
        "recorded": Trainer(model, "xla").step,
        "compiled": compiled.step,
        "whole step": trcomp.step(Trainer(model, "xla").step),
    }


def main(models: list[str] | None = None) -> list[dict[str, Any]]:
    """Measure and print."""
    torch.set_num_threads(2)
    names = [name for name in _MEASURED if not models or name.startswith(tuple(models))]
    return [told(name, host_times(_forms(MODELS[name]()))) for name in names]
