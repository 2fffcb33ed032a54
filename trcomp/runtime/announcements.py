"""What a job's log says of compiles: those that take long as training begins, each later cause."""

from __future__ import annotations

import sys
from collections import Counter

from trcomp import flags
from trcomp.runtime import client
from trcomp.runtime.causes import Cause
from trcomp.runtime.metrics import counters

_TOLD_FROM = 50
"""Operations from which a compile takes long enough to be announced."""
_EXPLAINED_FROM = 10
"""Operations from which a compile in the middle of training is."""
_WARM_STEPS = 3
_TELLINGS = 3
"""How often one cause at one line is told of."""
_MOST_LINES = 20

_told: Counter[tuple[str, str]] = Counter()


def begin(cause: Cause, operations: int) -> None:
    """A graph is going to be compiled.

    After the first steps one line says what changed, where, and what to do. A script whose every
    step is another graph is told so a few times, not in each step.
    """
    if not _is_explained(cause, operations):
        if operations >= _TOLD_FROM:
            _say(f"compiling a graph of {operations} operations")
        return
    key = cause.kind, cause.line
    _told[key] += 1
    if _told[key] <= _TELLINGS and _told.total() <= _MOST_LINES:
        last = " (said no more; the report counts)" if _told[key] == _TELLINGS else ""
        where = f", at {cause.line}" if cause.line else ""
        _say(
            f"step {counters.steps + 1} compiles again, {operations} operations: "
            f"{cause.text}{where}; {cause.remedy}{last}"
        )


def end(cause: Cause, operations: int, seconds: float) -> None:
    """It has been compiled.

    Args:
        cause: Why.
        operations: Of the graph.
        seconds: How long it took.
    """
    if operations >= _TOLD_FROM and not _is_explained(cause, operations):
        _say(f"compiled in {seconds:.1f} s")


def _is_explained(cause: Cause, operations: int) -> bool:
    is_warm = counters.steps >= _WARM_STEPS
    return is_warm and bool(cause.text) and operations >= _EXPLAINED_FROM


def _say(message: str) -> None:
    """Say on stderr what a job waits for; from one rank."""
    if flags.WORKER.get() and client.rank() == 0:
        print(f"[trcomp] {message}", file=sys.stderr, flush=True)
