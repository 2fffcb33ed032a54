"""Host time of a training step: recorded operator by operator, and compiled.

Three forms of the same step: nothing compiled, the model compiled, model and optimizer compiled.
Measured is the processor time of the script's thread, sync's included; the device's own threads and
whatever else the machine does are not in it. Run: python -m benchmarks compiled
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import trcomp.runtime as rt
from benchmarks.models import MODELS, Model, Trainer

_ROUNDS = 20


_MEASURED = ("vit-tiny", "bert-tiny", "vit", "bert")


class _Forms:
    """One model's step in each form, each with a model of its own."""

    def __init__(self, model: Model) -> None:
        self.steps: dict[str, Callable[[], Any]] = {}
        for form in ("recorded", "model compiled", "step compiled"):
            torch._dynamo.reset()
            trainer = Trainer(model, "xla")
            if form != "recorded":
                trainer.model = torch.compile(trainer.model, backend="trcomp")  # type: ignore[assignment]
            if form == "step compiled":
                trainer.update = torch.compile(trainer.update, backend="trcomp")
            self.steps[form] = trainer.step


def host_times(steps: dict[str, Callable[[], Any]]) -> dict[str, dict[str, int]]:
    """Medians over interleaved rounds: microseconds of host time, and nodes, per step of a form."""
    recording: dict[str, list[float]] = {form: [] for form in steps}
    syncing: dict[str, list[float]] = {form: [] for form in steps}
    nodes: dict[str, int] = {}
    for round_number in range(_ROUNDS + 3):
        for form, step in steps.items():
            before, start = rt.metrics()["recorded_nodes"], time.thread_time()
            loss = step()
            recorded = time.thread_time()
            rt.sync()
            ended = time.thread_time()
            nodes[form] = rt.metrics()["recorded_nodes"] - before
            rt.sync(wait=True)
            del loss
            if round_number >= 3:
                recording[form].append((recorded - start) * 1e6)
                syncing[form].append((ended - recorded) * 1e6)
    return {
        form: {
            "nodes": nodes[form],
            "recording_us": round(statistics.median(recording[form])),
            "sync_us": round(statistics.median(syncing[form])),
        }
        for form in steps
    }


def told(name: str, figures: dict[str, dict[str, int]]) -> dict[str, Any]:
    """A model's figures as a row, printed."""
    for form, of_form in figures.items():
        print(
            f"{name:<13} {form:<15} {of_form['nodes']:>4} nodes  recording "
            f"{of_form['recording_us']:>6} us  sync {of_form['sync_us']:>6} us",
            flush=True,
        )
    return {"model": name, **figures}


def main() -> list[dict[str, Any]]:
    """Measure and print."""
    torch.set_num_threads(2)
    return [told(name, host_times(_Forms(MODELS[name]()).steps)) for name in _MEASURED]
