"""What feeding a model costs: the wait for input, and a step with the loader against one without.

The data set lies in memory and torch's DataLoader collates it, so it can keep up. Three ways
to the same step take turns: one batch that lies on the device already; `DeviceLoader`; and batches
that the script itself moves, as it would without a loader. Run: python -m benchmarks loader
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

import trcomp.runtime as rt
from benchmarks.models import MODELS, Trainer

_NAMES = ("vit", "bert", "resnet50-64px")
_ROUNDS = 3
_STEPS = 8
_WARM_UP = 2
"""Steps of a round that are not measured: the loader starts, and the host gets ahead."""

Batch = dict[str, torch.Tensor]


def _samples(batch: Callable[[], Batch], num_steps: int) -> list[Batch]:
    batches = [batch() for _ in range(num_steps)]
    return [
        {name: tensor[i] for name, tensor in made.items()}
        for made in batches
        for i in range(len(next(iter(made.values()))))
    ]


def _round(trainer: Trainer, batches: Iterable[Batch], ends_step: bool) -> tuple[float, float]:
    """Milliseconds of a steady step, and of its wait for input."""
    seconds, waited, steps = 0.0, 0.0, 0
    iterator: Iterator[Batch] = iter(batches)
    for step in range(_STEPS):
        if step == _WARM_UP:
            seconds, waited = time.perf_counter(), rt.metrics()["input_wait_seconds"]
        trainer.batch = next(iterator)
        trainer.step()
        if not ends_step:
            rt.sync()
        steps += step >= _WARM_UP
    waited = rt.metrics()["input_wait_seconds"] - waited
    rt.sync(wait=True)
    return (time.perf_counter() - seconds) / steps * 1000, waited / steps * 1000


def measure(name: str) -> dict[str, Any]:
    """One model's figures: medians over rounds."""
    torch.set_num_threads(2)
    model = MODELS[name]()
    trainer = Trainer(model, "xla")
    resident = trainer.batch
    data: Any = DataLoader(_samples(model.batch, _STEPS + 4), model.num_samples)
    ways: dict[str, Callable[[], tuple[float, float]]] = {
        "resident": lambda: _round(trainer, [resident] * _STEPS, False),
        "loader": lambda: _round(trainer, rt.DeviceLoader(data), True),
        "script": lambda: _round(
            trainer, ({k: t.to("xla") for k, t in batch.items()} for batch in data), False
        ),
    }
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for number in range(_ROUNDS + 1):
        for way, run in ways.items():
            figures = run()
            if number:  # The first round compiles.
                found[way].append(figures)
    ms = {way: statistics.median(step for step, _ in rows) for way, rows in found.items()}
    share = statistics.median(wait / step for step, wait in found["loader"])
    megabytes = sum(tensor.numel() * tensor.element_size() for tensor in resident.values()) / 1e6
    return {
        "model": name,
        "batch_mb": round(megabytes, 2),
        **{f"{way}_ms": round(value, 1) for way, value in ms.items()},
        "input_wait_percent": round(100 * share, 2),
    }


def main() -> list[dict[str, Any]]:
    """Measure and print."""
    rows = []
    for name in _NAMES:
        row = measure(name)
        rows.append(row)
        print(
            f"{name:<16} batch {row['batch_mb']} MB: wait {row['input_wait_percent']} % of a step; "
            f"step {row['loader_ms']} ms, {row['resident_ms']} ms without input, "
            f"{row['script_ms']} ms moved by the script",
            flush=True,
        )
    return rows
