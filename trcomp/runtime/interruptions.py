"""What cuts steps or leaves the device, by the script's line: values read, operators on the CPU."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from trcomp.runtime import source_lines
from trcomp.runtime.metrics import counters, step_observers

_MOST_PLACES = 200

READ = "read"
"""A value is read before the step's end: `.item()`, `print`, `.cpu()`, `if tensor:`."""
OPERATOR = "operator"
"""torch runs an operator on the CPU."""


@dataclass
class Interruption:
    """What one line of the script does.

    Attributes:
        kind: `READ` or `OPERATOR`.
        name: The operator's, empty for reads.
        line: Of the script.
        count: How often.
        cuts: How often it cut a step in two.
        seconds: What the host waited in it, compiling apart.
    """

    kind: str
    name: str
    line: str
    count: int = 0
    cuts: int = 0
    seconds: float = 0.0


_found: dict[tuple[str, str, str], Interruption] = {}


class _State:
    now: Interruption | None = None
    """What goes on."""
    of_step: ClassVar[deque[Interruption]] = deque(maxlen=16)
    """What there was since the last step's end, once each time."""


@contextmanager
def noted(kind: str, name: str = "") -> Iterator[None]:
    """The block reads a value, or runs an operator on the CPU, which reads values in turn.

    Reads count if they cut the step; one after its end costs nothing but waiting.
    """
    if _State.now is not None:
        yield
        return
    _State.now = Interruption(kind, name, "")
    start, cuts, compiled = time.perf_counter(), counters.early_syncs, counters.compile_seconds
    try:
        yield
    finally:
        _State.now = None
        cuts = counters.early_syncs - cuts
        if cuts or kind == OPERATOR:
            compiled = counters.compile_seconds - compiled
            _note(kind, name, cuts, time.perf_counter() - start - compiled)


def _note(kind: str, name: str, cuts: int, seconds: float) -> None:
    key = kind, name, source_lines.here()
    _State.of_step.append(Interruption(*key, cuts=cuts))
    if key not in _found and len(_found) >= _MOST_PLACES:
        return
    place = _found.setdefault(key, Interruption(*key))
    place.count += 1
    place.cuts += cuts
    place.seconds += seconds


def of_step() -> list[Interruption]:
    """What interrupts the step that is being recorded, the last first."""
    found = list(reversed(_State.of_step))
    if _State.now is None:
        return found
    return [replace(_State.now, line=source_lines.here(), cuts=1), *found]


step_observers.append(_State.of_step.clear)


def summary() -> list[dict[str, Any]]:
    """Each line's, as JSON values, the costliest first."""
    return [asdict(one) for one in sorted(_found.values(), key=lambda one: -one.seconds)]


def clear() -> None:
    """Forget all."""
    _found.clear()
    _State.of_step.clear()
