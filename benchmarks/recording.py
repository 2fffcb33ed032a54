"""Host time of recording: forward, backward and optimizer.

Two measures: the whole step's host time per part, with PyTorch's modules and autograd in it, as
a ratio to the same step on meta tensors, which computes no numbers either; and each operator's own
cost, its output tensor included, by calling every operator of the step again by itself.
Then the whole step beside torch_xla's tracer, which is C++, each in a process; turns alternate.
Run: python -m benchmarks recording
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import trcomp.runtime as rt
from benchmarks.contest import RECORDERS
from benchmarks.models import MODELS, Trainer
from benchmarks.training_step import Contest, takes_part

_ROUNDS = 15
_PEER_SECONDS = 30.0
"""Turns go round until then, three times at least."""


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


class _Calls(TorchDispatchMode):
    """Keeps every operator call of a step with its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def _each(trainer: Trainer) -> list[float]:
    """Microseconds of each operator of a step that records something, by itself."""
    with torch.enable_grad(), _Calls() as log:
        trainer.step()
    rt.sync(wait=True)
    costs = []
    for func, args, kwargs in log.calls:
        before = rt.metrics()["recorded_nodes"]
        func(*args, **kwargs)
        nodes = rt.metrics()["recorded_nodes"] - before
        if not nodes:
            continue
        times = [_timed(lambda: func(*args, **kwargs))[0] for _ in range(9)]  # noqa: B023
        costs.append(statistics.median(times) / nodes * 1e6)
    rt.sync(wait=True)
    return costs


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
    costs = _each(trainer)
    row["operator_us_median"] = round(statistics.median(costs), 1)
    row["operator_us_p90"] = round(statistics.quantiles(costs, n=10)[-1], 1)
    row["record_ms"] = round(total * 1e3, 1)
    row["sync_ms"] = round(statistics.median(syncs) * 1e3, 1)
    row["ratio_to_meta_dispatch"] = round(statistics.median(ratios), 2)
    return row


def against(name: str, peers: Sequence[str]) -> dict[str, Any]:
    """What the host does in a step of each peer: operations, microseconds to record and to start.

    An operation of trcomp's is a node of its graph, one of torch_xla's a call of its tracer.
    """
    row = Contest(name, peers).run(_PEER_SECONDS)
    return {
        peer: {
            "operations": figures["operations"],
            "record_us": figures["script_us"],
            "us_per_operation": round(figures["script_us"] / figures["operations"], 1),
            "sync_us": figures["host_us"] - figures["script_us"],
        }
        for peer, figures in row["peers"].items()
    }


def main() -> list[dict[str, Any]]:
    """Measure and print."""
    torch.set_num_threads(2)
    peers = takes_part(RECORDERS)
    rows = []
    for name in ("vit", "bert", "resnet50-64px"):
        row = measure(name)
        row["peers"] = against(name, peers)
        rows.append(row)
        parts = "  ".join(
            f"{part} {row[part]['operations']} ops {row[part]['us_each']} us"
            for part in ("forward", "backward", "optimizer")
        )
        print(
            f"{name:<16} {parts}\n{'':<16} an operator alone: median {row['operator_us_median']} "
            f"us, p90 {row['operator_us_p90']} us; whole step: record {row['record_ms']} ms, sync "
            f"{row['sync_ms']} ms, {row['ratio_to_meta_dispatch']}x of meta dispatch",
            flush=True,
        )
        for peer, figures in row["peers"].items():
            print(
                f"{'':<16} {peer:<15} {figures['operations']:>5} operations, record "
                f"{figures['record_us'] / 1e3:.1f} ms, {figures['us_per_operation']} us each; "
                f"start {figures['sync_us'] / 1e3:.1f} ms",
                flush=True,
            )
    return rows
