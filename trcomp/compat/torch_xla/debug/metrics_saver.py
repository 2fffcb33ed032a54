"""XLA_METRICS_FILE: the counters appended to a file after every step."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import trcomp.runtime as rt

_steps = itertools.count(1)


def save_metrics(metrics_file: str | None = None) -> None:
    """Append the counters to a file.

    Args:
        metrics_file: Its path; None is the variable XLA_METRICS_FILE's, and nothing without it.
            Ranks other than 0 write beside it.
    """
    chosen = metrics_file or os.environ.get("XLA_METRICS_FILE")
    if not chosen:
        return
    path = Path(chosen if rt.rank() == 0 else f"{chosen}.{rt.rank()}")
    from . import metrics

    with path.open("a", encoding="utf-8") as file:
        file.write(f"[MetricsData; step={next(_steps)}]\n{metrics.metrics_report()}\n\n")
