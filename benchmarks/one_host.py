"""What one host's supervisor costs, with real processes in place of its ranks: all of it is real.

At rest it waits and looks at what its ranks say of their progress; else it carries their lines.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trcomp import flags, progress
from trcomp.entrypoint.processes import Signals
from trcomp.entrypoint.supervisor import Outcome, Worker, supervise
from trcomp.entrypoint.watchdog import Watchdog
from trcomp.lines import Console, rank_prefix
from trcomp.progress import Progress

_LINE = "step 10: loss 0.2500, 320.0 samples/s, and whatever else a script may want to print"


def rest(ranks: int, seconds: int) -> dict[str, Any]:
    """CPU seconds a minute of a supervisor whose ranks print nothing and train."""

    def train(place: Path) -> None:
        for rank in range(ranks):
            progress.write(place, Progress(rank, os.getpid(), 5, time.monotonic()))
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM)).start()

    begin = time.process_time()
    # Its start and its end are in it too.
    _supervised([("sleep", "infinity")] * ranks, train)
    spent = time.process_time() - begin
    return {"cpu_seconds_per_minute": round(spent / seconds * 60, 3)}


def pump(ranks: int, lines_of_each: int) -> dict[str, Any]:
    """Lines a second that a host carries while all its ranks print as fast as they can."""
    script = f"yes '{_LINE}' | head -n {lines_of_each}"
    begin, cpu = time.perf_counter(), time.process_time()
    outcome = _supervised([("sh", "-c", script)] * ranks)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    assert all(one.returncode == 0 for one in outcome.exits)
    lines = ranks * lines_of_each
    return {
        "lines": lines,
        "lines_per_second": round(lines / seconds),
        "mb_per_second": round(lines * (len(_LINE) + 1) / seconds / 1e6, 1),
        "cpu_seconds_per_million_lines": round(cpu / lines * 1e6, 2),
    }


def _supervised(commands: Sequence[tuple[str, ...]], started: Any = None) -> Outcome:
    """Run processes as a host's ranks, with a log each, to their end."""
    with tempfile.TemporaryDirectory() as scratch, Signals() as signals:
        place = Path(scratch)
        workers = [
            Worker(n, argv, os.environ, place, rank_prefix(n), place / f"rank-{n}.log")
            for n, argv in enumerate(commands)
        ]
        with (place / "host.log").open("wb") as console:
            return supervise(
                workers,
                console=Console(console.fileno()),
                signals=signals,
                grace_seconds=30,
                on_started=partial(started, place) if started else lambda: None,
                watchers=[Watchdog(place, flags.WATCHDOG_SECONDS.default, place)],
            )
