"""Time to the first finished step in a cold process and in one that finds its executables on disk.

Each measurement is a process of its own, with what makes it the worker of a job with one rank: the
second begins to read what the first used while it imports. Imports and building the model are not
in it. Run: python -m benchmarks warm_start
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

_NAMES = ("vit", "bert", "resnet50-64px")
_PAIRS = 3


def _first_step(name: str) -> dict[str, Any]:
    """In this process: seconds from the first use of the device to the first finished step."""
    import torch

    import trcomp.runtime as rt
    from benchmarks.models import MODELS, Trainer

    torch.set_num_threads(2)
    model = MODELS[name]()
    model.build()  # Imports the model's module.
    start = time.perf_counter()
    trainer = Trainer(model, "xla")
    trainer.step()
    rt.sync(wait=True)
    seconds = time.perf_counter() - start
    counts = rt.metrics()
    return {"seconds": seconds, "compiles": counts["compiles"], "loads": counts["loads"]}


def _run(name: str, cache: str) -> dict[str, Any]:
    from trcomp import flags

    worker = {flags.CACHE.name: cache, flags.WORKER.name: "1", "RANK": "0", "WORLD_SIZE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.warm_start", name],
        env=os.environ | worker,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(name: str) -> dict[str, Any]:
    """One model's figures: medians over pairs of a cold and a warm process."""
    cold, warm = [], []
    for _ in range(_PAIRS):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(_run(name, cache))
            warm.append(_run(name, cache))
    pairs = zip(warm, cold, strict=True)
    return {
        "model": name,
        "cold_seconds": round(statistics.median(run["seconds"] for run in cold), 2),
        "warm_seconds": round(statistics.median(run["seconds"] for run in warm), 2),
        "ratio": round(statistics.median(w["seconds"] / c["seconds"] for w, c in pairs), 2),
        "compiles": warm[0]["compiles"],
        "loads": warm[0]["loads"],
    }


def main() -> list[dict[str, Any]]:
    """Measure and print."""
    rows = []
    for name in _NAMES:
        row = measure(name)
        rows.append(row)
        print(
            f"{name:<16} cold {row['cold_seconds']} s, warm {row['warm_seconds']} s: "
            f"{row['ratio']}x, {row['loads']} loaded, {row['compiles']} compiled",
            flush=True,
        )
    return rows


if __name__ == "__main__":
    print(json.dumps(_first_step(sys.argv[1])))
