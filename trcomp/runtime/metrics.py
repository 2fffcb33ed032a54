"""What the runtime counts: compiles, syncs, fallbacks and where the seconds go."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from trcomp import flags


@dataclass
class Counters:
    """One process's counters since it started (or since `clear`)."""

    compiles: int = 0
    """Executables built by XLA."""
    loads: int = 0
    """Executables that an earlier process had built, read from disk."""
    cache_hits: int = 0
    """Graphs whose executable existed."""
    executions: int = 0
    """Executables run."""
    recorded_nodes: int = 0
    """Operations recorded."""
    early_syncs: int = 0
    """Graphs cut because the script read a value before the step's end."""
    reads_aside: int = 0
    """Values read that took an operation or two, computed aside while the step stayed whole."""
    captures: int = 0
    """Forms of steps that were captured as a whole (`trcomp.step`)."""
    refused_captures: int = 0
    """Forms that could not be."""
    replays: int = 0
    """Calls of captured steps: one recorded operation each."""
    steps: int = 0
    """Step barriers that had work."""
    donated_buffers: int = 0
    """Inputs whose memory an output took over."""
    gathers: int = 0
    """Strided reads that no slice, transpose or broadcast could express."""
    fallbacks: Counter[str] = field(default_factory=Counter)
    """Operators run by torch on the CPU: name -> times."""
    record_seconds: float = 0.0
    """Host time between step barriers that is none of the below: the script and recording it."""
    sync_seconds: float = 0.0
    """Host time in sync: collecting the graph, its key, and starting the executable."""
    compile_seconds: float = 0.0
    """Tracing, lowering and compiling, or loading instead."""
    run_seconds: float = 0.0
    """Time the host waited for the device: reads, and backpressure at step barriers."""
    input_wait_seconds: float = 0.0
    """Time the step waited for the loader."""
    compiled_models: int = 0
    """Models that TRCOMP_COMPILE_MODELS compiled."""
    samples: int = 0
    """Samples of the batches that the device loader handed over."""
    step_marks: list[float] = field(default_factory=list)
    """`time.perf_counter()` at each step barrier."""
    new_graph_steps: list[int] = field(default_factory=list)
    """For each executable built or loaded, the step barriers before it."""

    _elsewhere_at_mark: float = 0.0
    _executions_at_mark: int = 0

    def mark_step(self) -> None:
        """Note a step barrier, unless nothing was computed since the last one.

        Time since the last that nothing else claims went into recording.
        """
        if self.executions == self._executions_at_mark:
            return
        self._executions_at_mark = self.executions
        now = time.perf_counter()
        elsewhere = (
            self.sync_seconds + self.compile_seconds + self.run_seconds + self.input_wait_seconds
        )
        if self.step_marks:
            spent = now - self.step_marks[-1] - (elsewhere - self._elsewhere_at_mark)
            self.record_seconds += max(spent, 0.0)
        self._elsewhere_at_mark = elsewhere
        self.note_step(now)

    def note_step(self, now: float) -> None:
        """A step has ended at this `time.perf_counter()`."""
        self.steps += 1
        self.step_marks.append(now)
        for observe in step_observers:
            observe()

    def end_script(self) -> None:
        """Leave the script when it has made as many steps as TRCOMP_STEPS says.

        Raises:
            SystemExit: With 0.
        """
        limit = flags.STEPS.get()
        if limit and self.steps >= limit:
            raise SystemExit(0)

    def clear(self) -> None:
        """Start again from zero."""
        for item in fields(self):
            setattr(self, item.name, type(getattr(self, item.name))())


step_observers: list[Callable[[], None]] = []
"""Called after each step."""
counters = Counters()
_started = time.perf_counter()


def metrics() -> dict[str, Any]:
    """All counters as plain numbers, `fallbacks` as a dict of operator to count."""
    names = (item.name for item in fields(counters))
    values = {name: getattr(counters, name) for name in names if not name.startswith("_")}
    values["fallbacks"] = dict(counters.fallbacks)
    del values["step_marks"], values["new_graph_steps"]
    return values


def metrics_report() -> str:
    """The counters as lines of text, for people."""
    lines = [f"trcomp metrics after {time.perf_counter() - _started:.1f} s"]
    for name, value in metrics().items():
        if name == "fallbacks":
            continue
        lines.append(
            f"  {name:<20} {value:.3f}" if isinstance(value, float) else f"  {name:<20} {value}"
        )
    if counters.fallbacks:
        lines.append("  run on the CPU by torch (no lowering):")
        lines += [f"    {name:<30} {count}" for name, count in counters.fallbacks.most_common()]
    return "\n".join(lines)
