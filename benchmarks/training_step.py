"""A training step of the measured models: trcomp beside PyTorch, torch_xla and flax.

    python -m benchmarks training_step
    python -m benchmarks training_step --models vit --peers eager trcomp torch_xla

Each contestant is a process; their steps alternate (contest.py). Float32, batch 8, AdamW, two
threads. Peers in environments of their own are left out, and named, until `make peers` made them.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.contest import PEERS, RECORDERS, Contestant, Failed, Step, chosen

MODELS = (
    "vit",
    "bert",
    "gpt2",
    "resnet18-64px",
    "resnet18-128px",
    "resnet50-64px",
    "resnext50_32x4d-64px",
    "alexnet-64px",
    "mobilenet_v2-64px",
    "mnasnet1_0-64px",
    "vgg16-64px",
)
_TINY = ("vit-tiny", "bert-tiny")
"""Measured when they are asked for: to try the tool."""
MINUTES = 25.0
"""What all models may take together, or little more: slower machines make fewer rounds."""
_ROUNDS = range(3, 11)
_TURN_STEPS, _TURN_SECONDS = 3, 4.0
_EARLY_STEPS, _EARLY_SECONDS = 4, 8.0
_SLOW_STARTERS = ("openxla", "inductor")
"""Left out of a model where the others have used up most of its time: their first steps take the
longest by far."""
_STARTING_SHARE = 0.6
_LOSS_TOLERANCE = 1e-3
Row = dict[str, Any]
Action = Callable[[Contestant], None]


class Contest:
    """One model's contestants; those that fail leave it, with the reason in `failures`."""

    def __init__(self, model: str, names: Sequence[str]) -> None:
        self.model = model
        self.failures: dict[str, str] = {}
        self.running = {name: Contestant(PEERS[name], model) for name in names}

    def run(self, seconds: float) -> Row:
        """Start, warm up, and go round until the time is over; the model's figures."""
        begin = time.monotonic()
        deadline = begin + seconds
        try:
            self._each(Contestant.get_ready)
            for name in list(self.running):
                if name in _SLOW_STARTERS and time.monotonic() > begin + _STARTING_SHARE * seconds:
                    self._leave(name, "left out: no time")
                else:
                    self._one(name, Contestant.first)
            self._each(lambda one: one.warm_up(_EARLY_STEPS, _EARLY_SECONDS))
            for number in range(_ROUNDS.stop - 1):
                if number >= _ROUNDS.start and time.monotonic() > deadline:
                    break
                self._each(lambda one: one.turn(_TURN_STEPS, _TURN_SECONDS))
            self._each(Contestant.report)
            return self._row()
        finally:
            for one in self.running.values():
                one.close()

    def _each(self, action: Action) -> None:
        for name in list(self.running):
            self._one(name, action)

    def _one(self, name: str, action: Action) -> None:
        try:
            action(self.running[name])
        except Failed as error:
            self._leave(name, str(error))

    def _leave(self, name: str, why: str) -> None:
        self.failures[name] = why
        self.running.pop(name).close()

    def _row(self) -> Row:
        versions = {name: one.versions for name, one in self.running.items()}
        row: Row = {"model": self.model, "peers": {}, "failures": self.failures}
        eager = self.running.get("eager")
        for name, one in self.running.items():
            row["peers"][name] = figures = _figures(one)
            if eager is not None:
                figures["ratio"] = round(_ratio(one, eager), 3)
                alike = PEERS[name].python == PEERS["eager"].python
                if alike and _differs(one.loss, eager.loss):
                    self.failures[name] = f"first loss {one.loss}, PyTorch's is {eager.loss}"
        return row | {"versions": versions}


def _figures(one: Contestant) -> Row:
    steps = [step for turn in one.turns for step in turn]
    steady = statistics.median(step.device for step in steps)
    peak = one.counts["peak_rss_bytes"]
    return {
        "step_ms": round(steady * 1e3, 2),
        "script_us": _microseconds(step.script for step in steps),
        "host_us": _microseconds(step.host for step in steps),
        "first_step_seconds": round(one.early[0].device, 2),
        "steps_until_steady": _steps_until(1.05 * steady, one.early + steps),
        "compiles": one.counts["compiles"],
        "operations": one.counts["operations"],
        "peak_rss_mb": None if peak is None else round(peak / 1e6),
    }


def _microseconds(seconds: Iterable[float]) -> int:
    return round(statistics.median(seconds) * 1e6)


def _steps_until(seconds: float, steps: Sequence[Step]) -> int:
    """The number of the first step that took no longer."""
    reached = (number for number, step in enumerate(steps, 1) if step.device <= seconds)
    return next(reached, len(steps))


def _ratio(one: Contestant, other: Contestant) -> float:
    """The median over rounds of a step's time to another contestant's in the same round."""
    turns = zip(one.turns, other.turns, strict=True)
    return statistics.median(_turn_seconds(mine) / _turn_seconds(theirs) for mine, theirs in turns)


def _turn_seconds(turn: Sequence[Step]) -> float:
    return statistics.median(step.device for step in turn)


def _differs(mine: float | None, theirs: float | None) -> bool:
    assert mine is not None
    assert theirs is not None
    return abs(mine - theirs) > _LOSS_TOLERANCE * abs(theirs)


def takes_part(names: Sequence[str]) -> list[str]:
    """Those of some peers that can run here; says why others cannot."""
    obstacles = {name: PEERS[name].obstacle() for name in names}
    for name, obstacle in obstacles.items():
        if obstacle is not None:
            print(f"without {name}: {obstacle}", file=sys.stderr, flush=True)
    return [name for name in names if obstacles[name] is None]


def main(
    models: Sequence[str] | None = None,
    peers: Sequence[str] | None = None,
    minutes: float | None = None,
) -> list[Row]:
    """Measure and print, model by model."""
    wanted = chosen("model", models, (*MODELS, *_TINY)) if models else list(MODELS)
    names = takes_part(chosen("peer", peers, list(PEERS)))
    end = time.monotonic() + 60 * (MINUTES if minutes is None else minutes)
    rows = []
    for number, model in enumerate(wanted):
        begin = time.monotonic()
        if begin > end:
            left = wanted[number:]
            print(f"out of time; not measured: {', '.join(left)}", file=sys.stderr, flush=True)
            break
        share = (end - begin) / (len(wanted) - number)
        there = [name for name in names if not PEERS[name].models or model in PEERS[name].models]
        row = Contest(model, there).run(share)
        rows.append(row)
        print(f"{model} ({time.monotonic() - begin:.0f} s, {number + 1} of {len(wanted)})")
        print("\n".join(_lines(row)), flush=True)
    return rows


def _lines(row: Row) -> list[str]:
    lines = [
        f"  {name:<15}{one['step_ms']:>9.1f} ms  {one.get('ratio', 1):>6.2f}x  "
        f"{_host(name, one):<17}first {one['first_step_seconds']:>6.1f} s  "
        f"steady from step {one['steps_until_steady']}, {one['compiles']} compiles, "
        f"{one['peak_rss_mb']} MB"
        for name, one in row["peers"].items()
    ]
    return lines + [f"  {name:<15} {why}" for name, why in row["failures"].items()]


def _host(name: str, figures: Row) -> str:
    return f"host {figures['host_us'] / 1e3:>6.1f} ms" if name in RECORDERS else ""
