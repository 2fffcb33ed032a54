"""Single measurements of what happens often: their number, their sum, and the last of them."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager

_KEPT = 1024


class Series:
    """Measurements of one thing."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.recent: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        """(`time.monotonic`, value), oldest first."""


series: defaultdict[str, Series] = defaultdict(Series)


_prefix = ""


@contextmanager
def prefixed(prefix: str) -> Iterator[None]:
    """Measurements of a block are kept apart, under names that begin with `prefix`."""
    global _prefix
    before, _prefix = _prefix, prefix
    try:
        yield
    finally:
        _prefix = before


def note(name: str, value: float) -> None:
    """Add a measurement.

    Args:
        name: Of what, with its unit.
        value: The measurement.
    """
    held = series[_prefix + name]
    held.count += 1
    held.total += value
    held.recent.append((time.monotonic(), value))
