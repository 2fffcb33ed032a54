"""Host time of a training step: recorded operator by operator, and compiled.

Three forms of the same step: nothing compiled, the model compiled, model and optimizer compiled.
Measured is the processor time of the script's thread, sync's included; the device's own threads and
whatever else the machine does are not in it. Run: python -m benchmarks compiled
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers

import trcomp.runtime as rt
from benchmarks.models import MODELS, Model, Trainer

_ROUNDS = 20


def _tiny_vit() -> Model:
    config = transformers.ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=10,
    )

    def batch() -> dict[str, torch.Tensor]:
        return {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.randint(0, 10, (4,))}

    return Model(lambda: transformers.ViTForImageClassification(config), batch, 4)


def _tiny_bert() -> Model:
    config = transformers.BertConfig(
        vocab_size=200,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    base = MODELS["bert"]()

    def batch() -> dict[str, torch.Tensor]:
        return {
            "input_ids": torch.randint(0, 200, (4, 12)),
            "labels": torch.randint(0, 2, (4,)),
        }

    return dataclasses.replace(
        base, build=lambda: transformers.BertForSequenceClassification(config), batch=batch
    )


_MEASURED: dict[str, Callable[[], Model]] = {
    "vit-tiny": _tiny_vit,
    "bert-tiny": _tiny_bert,
    "vit": MODELS["vit"],
    "bert": MODELS["bert"],
}


class _Forms:
    """One model's step in each form, each with a model of its own."""

    def __init__(self, model: Model) -> None:
        self.steps: dict[str, Callable[[], Any]] = {}
        for form in ("recorded", "model compiled", "step compiled"):
            torch._dynamo.reset()
            trainer = Trainer(model, "xla")
            if form != "recorded":
                trainer.model = torch.compile(trainer.model, backend="trcomp")  # type: ignore[assignment]
            step = trainer.optimizer.step
            if form == "step compiled":
                step = torch.compile(step, backend="trcomp")
            self.steps[form] = self._step(trainer, step)

    @staticmethod
    def _step(trainer: Trainer, update: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> torch.Tensor:
            loss = trainer.forward()
            loss.backward()
            update()
            return loss.detach()

        return run


def _measure(name: str) -> dict[str, Any]:
    """Medians over interleaved rounds: microseconds of host time, and nodes, per step."""
    forms = _Forms(_MEASURED[name]())
    recording: dict[str, list[float]] = {form: [] for form in forms.steps}
    syncing: dict[str, list[float]] = {form: [] for form in forms.steps}
    nodes: dict[str, int] = {}
    for round_number in range(_ROUNDS + 3):
        for form, step in forms.steps.items():
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
    row: dict[str, Any] = {"model": name}
    for form in forms.steps:
        row[form] = {
            "nodes": nodes[form],
            "recording_us": round(statistics.median(recording[form])),
            "sync_us": round(statistics.median(syncing[form])),
        }
    return row


def main() -> list[dict[str, Any]]:
    """Measure and print."""
    torch.set_num_threads(2)
    rows = []
    for name in _MEASURED:
        row = _measure(name)
        rows.append(row)
        for form, figures in row.items():
            if form != "model":
                print(
                    f"{name:<10} {form:<15} {figures['nodes']:>4} nodes  recording "
                    f"{figures['recording_us']:>6} us  sync {figures['sync_us']:>6} us",
                    flush=True,
                )
    return rows
