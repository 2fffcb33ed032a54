"""A training step's time on `xla` as a ratio to PyTorch eager on the CPU, in one process.

Steps of the two alternate, so that a drift of the machine touches both. Run:
python -m benchmarks training_step
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

import trcomp.runtime as rt
from benchmarks.models import MODELS, Trainer

_ROUNDS = 10


def measure(name: str) -> dict[str, Any]:
    """One model's figures."""
    model = MODELS[name]()
    ours, eager = Trainer(model, "xla"), Trainer(model, "cpu")
    before = rt.metrics()
    start = time.perf_counter()
    ours.step()
    rt.sync(wait=True)
    first = time.perf_counter() - start
    for _ in range(2):
        ours.step()
        rt.sync(wait=True)
        eager.step()
    ratios, mine, theirs, host = [], [], [], []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        eager.step()
        middle = time.perf_counter()
        ours.step()
        rt.sync()
        recorded = time.perf_counter()
        rt.sync(wait=True)
        end = time.perf_counter()
        theirs.append(middle - start)
        mine.append(end - middle)
        host.append(recorded - middle)
        ratios.append(mine[-1] / theirs[-1])
    return {
        "model": name,
        "eager_ms": round(statistics.median(theirs) * 1e3, 1),
        "xla_ms": round(statistics.median(mine) * 1e3, 1),
        "ratio": round(statistics.median(ratios), 2),
        "host_ms": round(statistics.median(host) * 1e3, 1),
        "first_step_seconds": round(first, 1),
        "compiles": rt.metrics()["compiles"] - before["compiles"],
        "fallbacks": sum(rt.metrics()["fallbacks"].values()) - sum(before["fallbacks"].values()),
    }


def main() -> list[dict[str, Any]]:
    """Measure and print."""
    torch.set_num_threads(2)
    rows = []
    for name in MODELS:
        row = measure(name)
        rows.append(row)
        print(
            f"{name:<16} eager {row['eager_ms']} ms, xla {row['xla_ms']} ms: {row['ratio']}x; host "
            f"{row['host_ms']} ms, first step {row['first_step_seconds']} s, {row['compiles']} "
            f"compiles, {row['fallbacks']} fallbacks",
            flush=True,
        )
    return rows
