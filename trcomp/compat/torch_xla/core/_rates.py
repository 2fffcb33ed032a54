"""`xm.RateTracker`: how many items a second, now and since the start."""

from __future__ import annotations

import time

from ..utils.utils import getenv_as


class RateTracker:
    """Counts items and says how fast they come.

    Args:
        smooth_factor: Weight in [0, 1) of the former rate in the next; None is 0.4, or
            RATE_TRACKER_SMOOTHING.
    """

    def __init__(self, smooth_factor: float | None = None) -> None:
        default = getenv_as("RATE_TRACKER_SMOOTHING", float, 0.4)
        self._smooth_factor = default if smooth_factor is None else smooth_factor
        self._start_time = self._partial_time = time.monotonic()
        self._partial_count = self._count = 0.0
        self._partial_rate: float | None = None

    def add(self, count: float) -> None:
        """Note that `count` items more are done."""
        self._count += count

    def rate(self) -> float:
        """Items a second since this was asked last, smoothed."""
        now = time.monotonic()
        seconds = now - self._partial_time
        if seconds <= 0:
            return self._partial_rate or 0.0
        latest = self._count / seconds
        if self._partial_rate is not None:
            latest += self._smooth_factor * (self._partial_rate - latest)
        self._partial_count += self._count
        self._count, self._partial_time, self._partial_rate = 0.0, now, latest
        return latest

    def global_rate(self) -> float:
        """Items a second since the start."""
        seconds = time.monotonic() - self._start_time
        return (self._partial_count + self._count) / seconds if seconds > 0 else 0.0
