"""Microseconds of host time per recorded operation: forward, backward and optimizer.

The peer is PyTorch's own dispatch of the same step on meta tensors: it computes no numbers either.
Run: python -m benchmarks recording
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import trcomp.runtime as rt
from benchmarks.models import MODELS, Trainer

_ROUNDS = 15


def _timed(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    made = function()
    return time.perf_counter() - start, made


def _parts(trainer: Trainer) -> tuple[dict[str, float], dict[str, int]]:
    """Seconds and recorded operations of one step's parts."""
    seconds: dict[str, float] = {}
    nodes: dict[str, int] = {}

    def part(name: str, function: Callable[[], Any]) -> Any:
        before = rt.metrics()["recorded_nodes"]
        seconds[name], made = _timed(function)
        nodes[name] = rt.metrics()["recorded_nodes"] - before
        return made

    loss = part("forward", trainer.forward)
    part("backward", loss.backward)
    part("optimizer", trainer.optimizer.step)
    return seconds, nodes


def measure(name: str) -> dict[str, Any]:
    """One model's figures: operations and microseconds each by part, and the peer's step."""
    model = MODELS[name]()
    trainer, peer = Trainer(model, "xla"), Trainer(model, "meta", foreach=True)
    for _ in range(3):
        trainer.step()
        rt.sync(wait=True)
    samples: dict[str, list[float]] = {"forward": [], "backward": [], "optimizer": []}
    ratios, syncs = [], []
    for _ in range(_ROUNDS):
        seconds, nodes = _parts(trainer)
        before = rt.metrics()["sync_seconds"]
        rt.sync(wait=True)
        syncs.append(rt.metrics()["sync_seconds"] - before)
        for part, value in seconds.items():
            samples[part].append(value)
        theirs, _ = _timed(peer.step)
        ratios.append(sum(seconds.values()) / theirs)
    row: dict[str, Any] = {"model": name}
    for part, values in samples.items():
        row[part] = {
            "operations": nodes[part],
            "us_each": round(statistics.median(values) / nodes[part] * 1e6, 1),
        }
    total = sum(statistics.median(values) for values in samples.values())
    row["us_per_operation"] = round(total / sum(nodes.values()) * 1e6, 1)
    row["record_ms"] = round(total * 1e3, 1)
    row["sync_ms"] = round(statistics.median(syncs) * 1e3, 1)
    row["ratio_to_meta_dispatch"] = round(statistics.median(ratios), 2)
    return row


def main() -> list[dict[str, Any]]:
    """Measure and print."""
    torch.set_num_threads(2)
    rows = []
    for name in ("vit", "bert", "resnet50-64px"):
        row = measure(name)
        rows.append(row)
        parts = "  ".join(
            f"{part} {row[part]['operations']} ops {row[part]['us_each']} us"
            for part in ("forward", "backward", "optimizer")
        )
        print(
            f"{name:<16} {parts}  | all {row['us_per_operation']} us/op, record {row['record_ms']} "
            f"ms, sync {row['sync_ms']} ms, {row['ratio_to_meta_dispatch']}x meta dispatch",
            flush=True,
        )
    return rows
