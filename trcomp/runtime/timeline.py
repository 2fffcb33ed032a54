"""What happened when in this process: steps, compiles, memory; little, however long it trains."""

from __future__ import annotations

import itertools
import resource
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_loaded = time.perf_counter()
_MOST_POINTS = 500
_MOST_COMPILES = 200
_PAGE_BYTES = resource.getpagesize()

_compiles: list[dict[str, Any]] = []
_memory: list[tuple[float, int]] = []
_every = 1
_ticks = 0


def note_compile(
    *,
    step: int,
    seconds: float,
    operations: int,
    num_bytes: int,
    loaded: bool,
    kind: str,
    reason: str,
    line: str,
) -> None:
    """A graph has become an executable.

    Args:
        step: Step barriers before it.
        seconds: How long that took.
        operations: Of the graph.
        num_bytes: What it reads, makes and needs in between.
        loaded: Whether an earlier process had compiled it.
        kind: What kind of reason there is, as `causes.Cause` has it.
        reason: Why it was compiled again, empty if it is the first of its kind.
        line: The script's line that is the reason, or else had it computed.
    """
    if len(_compiles) < _MOST_COMPILES:
        _compiles.append(
            {
                "step": step,
                "at_seconds": time.perf_counter() - _loaded,
                "seconds": seconds,
                "operations": operations,
                "bytes": num_bytes,
                "loaded": loaded,
                "kind": kind,
                "reason": reason,
                "line": line,
            }
        )


def note_memory() -> None:
    """Note how much memory the process has, now and then less often as it goes on."""
    global _every, _ticks
    _ticks += 1
    if _ticks % _every:
        return
    _memory.append((time.perf_counter() - _loaded, memory_bytes()))
    if len(_memory) > _MOST_POINTS:
        del _memory[::2]
        _every *= 2


def memory_bytes() -> int:
    """The resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * _PAGE_BYTES


def summary(marks: Sequence[float]) -> dict[str, Any]:
    """The timeline as JSON values: seconds from when trcomp was loaded, bytes.

    Args:
        marks: `time.perf_counter()` at each step barrier.
    """
    return {
        "steps": steps(marks),
        "made": made([mark - _loaded for mark in marks]),
        "compiles": list(_compiles),
        "memory": [list(point) for point in _memory],
    }


def steps(marks: Sequence[float]) -> list[list[float]]:
    """``[step, median seconds, longest seconds]`` of so many neighbouring steps that few are left.

    The first step, which waits for the script's start and the first compile, is none of them.
    """
    durations = [after - before for before, after in itertools.pairwise(marks)]
    size = max(1, -(-len(durations) // _MOST_POINTS))
    groups = ((start, durations[start : start + size]) for start in range(0, len(durations), size))
    return [[start + 2, statistics.median(group), max(group)] for start, group in groups]


def made(ends: Sequence[float]) -> list[list[float]]:
    """``[when, steps by then]`` of the first step, the last, and few between.

    Args:
        ends: When each step ended.
    """
    size = max(1, -(-len(ends) // _MOST_POINTS))
    last = len(ends) - 1
    return [[end, i + 1] for i, end in enumerate(ends) if i % size == 0 or i == last]
