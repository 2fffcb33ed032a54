"""What each stretch of steps took, line by line as it happens: metrics.jsonl, and on from there.

    counters, memory ──┐
    this rank's log ───┴─ every second or so ─> output/data/trcomp/metrics.jsonl
                                              └─ pipe ─> metric_sinks.py: TensorBoard, MLflow

The first rank's lines hold what it printed too, and go on. Other ranks' lie beside, in
metrics-rank-N.jsonl. A thread does it, and programs that are slow to load have a process of their
own: a step waits for neither.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trcomp import flags, metric_sinks, unwritten
from trcomp.line_metrics import LOSS, LineMetrics
from trcomp.runtime import own_rank, timeline
from trcomp.runtime.metrics import counters

_TICK_SECONDS = 1.0
_LONGEST_SECONDS = 10.0
_MOST_LOG_BYTES = 1 << 18
"""Of what a rank printed in one stretch: of more the last is looked at."""
_SINKS_END_SECONDS = 15.0
_COUNTED = ("compiles", "loads", "early_syncs", "samples")
_TIMED = ("record_seconds", "sync_seconds", "compile_seconds", "run_seconds", "input_wait_seconds")


def install() -> None:
    """Measure from the first step on, in a job that has not turned it off."""
    if flags.REPORT_DIR.get() and flags.METRICS.get():
        measuring = _Measuring(Path(flags.REPORT_DIR.get()))
        atexit.register(measuring.end)
        threading.Thread(target=measuring.run, name="trcomp-measuring", daemon=True).start()


class _Measuring:
    """One rank's lines."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begin = time.monotonic()
        self._before = _snapshot()
        self._log = _Log()
        self._total = _total_steps(sys.argv)
        self._sinks: _Sinks | None = None
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def run(self) -> None:
        """Write a line now and then, less often in a long job."""
        while True:
            lasted = time.monotonic() - self._begin
            time.sleep(min(_LONGEST_SECONDS, max(_TICK_SECONDS, lasted / 1000)))
            self.write()

    def end(self) -> None:
        """The script has ended."""
        if os.getpid() != self._pid:
            return  # A process that the script forked.
        self.write()
        if self._sinks is not None:
            failed = os.path.exists(flags.ERROR_FILE.get())
            self._sinks.end(failed=failed)

    def write(self) -> None:
        """Write what has happened since the last line, if a step has ended."""
        with self._lock:
            now = _snapshot()
            steps, self._before, before = now.steps - self._before.steps, now, self._before
            if steps > 0:
                self._put(self._line(now, before, steps))

    def _line(self, now: _Snapshot, before: _Snapshot, steps: int) -> dict[str, Any]:
        rank = own_rank.identity().rank
        line: dict[str, Any] = {
            "time": round(time.time(), 3),
            "rank": rank,
            "step": now.steps,
            "steps": steps,
            **self._total,
            **{name: now.counts[name] - before.counts[name] for name in _COUNTED},
            **{name: round(now.counts[name] - before.counts[name], 6) for name in _TIMED},
            "memory_bytes": timeline.memory_bytes(),
        }
        # The first step of all has no beginning.
        timed = steps if before.steps else steps - 1
        if timed > 0:
            step_seconds = (now.mark - (before.mark or counters.step_marks[0])) / timed
            line["step_seconds"] = round(step_seconds, 6)
            line["samples_per_second"] = round(line["samples"] / steps / step_seconds, 3)
        if rank == 0:
            line["metrics"] = self._log.latest()
        return line

    def _put(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line) + "\n"
        rank = line["rank"]
        name = f"metrics-rank-{rank}.jsonl" if rank else "metrics.jsonl"
        with unwritten.told(name):
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / name).open("a", encoding="utf-8") as stream:
                stream.write(text)
        if rank == 0:
            if self._sinks is None:
                self._sinks = _Sinks(self._folder.parent / "tensorboard")
            self._sinks.hand_on(text)


def _total_steps(argv: Sequence[str]) -> dict[str, int]:
    """How many steps the script is to make, where the job or an argument of that name says so."""
    if limit := flags.STEPS.get():
        return {"total_steps": limit}
    text = " ".join(argv).replace("=", " ")
    found = re.search(r"(?:^| )--(?:max|num|total|train)?[-_]?steps (\d+)(?: |$)", text)
    return {"total_steps": int(found[1])} if found else {}


class _Snapshot(NamedTuple):
    steps: int
    mark: float
    """When the last of them ended; 0 before the first."""
    counts: dict[str, Any]


def _snapshot() -> _Snapshot:
    marks = list(counters.step_marks[-1:])
    counts = {name: getattr(counters, name) for name in (*_COUNTED, *_TIMED)}
    return _Snapshot(len(counters.step_marks), marks[0] if marks else 0.0, counts)


class _Log:
    """The metrics among what this rank prints, by its file, which the supervisor writes."""

    def __init__(self) -> None:
        folder = flags.LOG_DIR.get()
        patterns = flags.METRIC_DEFINITIONS.get()
        self._found = LineMetrics(json.loads(patterns) if patterns else LOSS)
        self._path = Path(folder, "rank-0.log") if folder else None
        # What an earlier start of this rank printed is none of its own.
        self._read = self._size()

    def latest(self) -> dict[str, float]:
        """The last value of each metric that was printed since this was asked last."""
        if self._path is None or (size := self._size()) <= self._read:
            return {}
        start = max(self._read, size - _MOST_LOG_BYTES)
        with contextlib.suppress(OSError), self._path.open("rb") as stream:
            stream.seek(start)
            data = stream.read(size - start)
            whole = data.rfind(b"\n") + 1
            self._read = start + whole
            self._found.values.clear()
            self._found.read(data[:whole].decode(errors="replace").splitlines())
        return {name: values[-1] for name, values in self._found.values.items()}

    def _size(self) -> int:
        try:
            return self._path.stat().st_size if self._path else 0
        except OSError:
            return 0


class _Sinks:
    """The process that hands lines on, if there is anything to hand them to."""

    def __init__(self, events: Path) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if not metric_sinks.wanted(os.environ):
            return
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "trcomp.metric_sinks", str(events)],
                stdin=subprocess.PIPE,
                # What it has to say belongs to the log, what libraries print does not.
                stdout=sys.__stderr__.fileno() if sys.__stderr__ else subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | {flags.WORKER.name: "0", flags.CUDA_TO_XLA.name: "0"},
            )
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)

    def hand_on(self, text: str) -> None:
        """Hand a line on; one that has no room in the pipe is left out."""
        if self._process is not None and self._process.stdin is not None:
            # Not through its buffer, which would keep what had no room.
            with contextlib.suppress(OSError):
                os.write(self._process.stdin.fileno(), text.encode())

    def end(self, *, failed: bool) -> None:
        """Wait until all is handed on, but not for ever."""
        if self._process is None or self._process.stdin is None:
            return
        self.hand_on(json.dumps({"end": "FAILED" if failed else "FINISHED"}) + "\n")
        self._process.stdin.close()
        try:
            self._process.wait(_SINKS_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
