"""Single measurements of what happens often: their number, their sum, and the last of them."""

from __future__ import annotations

import time
from collections import defaultdict, deque

_KEPT = 1024


class Series:
    """Measurements of one thing."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.recent: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        """(seconds since the epoch, value), oldest first."""


series: defaultdict[str, Series] = defaultdict(Series)


def note(name: str, value: float) -> None:
    """Add a measurement.

    Args:
        name: Of what, with its unit.
        value: The measurement.
    """
    held = series[name]
    held.count += 1
    held.total += value
    held.recent.append((time.time(), value))
