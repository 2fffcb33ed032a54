"""`import torch_xla.debug.metrics as met`: trcomp's counters under torch_xla's names."""

from __future__ import annotations

from typing import Any

import trcomp.runtime as rt
from trcomp.runtime.metrics import counters

_COUNTERS = {
    "UncachedCompile": "compiles",
    "CachedCompile": "cache_hits",
    "MarkStep": "steps",
    "EarlySyncLiveTensorsCount": "early_syncs",
    "CreateXlaTensor": "recorded_nodes",
}
_METRICS = {
    "CompileTime": ("compiles", "compile_seconds"),
    "ExecuteTime": ("executions", "run_seconds"),
}


def metrics_report() -> str:
    """All counters as text."""
    return rt.metrics_report()


def short_metrics_report(counter_names: Any = None, metric_names: Any = None) -> str:
    """All counters as text; they are few."""
    return rt.metrics_report()


def counter_names() -> list[str]:
    """Names of the counters, fallbacks to the CPU as `aten::name`."""
    return [*_COUNTERS, *executed_fallback_ops()]


def counter_value(name: str) -> int | None:
    """A counter's value, None if there is none of that name."""
    if name in _COUNTERS:
        return int(rt.metrics()[_COUNTERS[name]])
    return {_fallback_name(op): count for op, count in counters.fallbacks.items()}.get(name)


def metric_names() -> list[str]:
    """Names of the timings."""
    return list(_METRICS)


def metric_data(name: str) -> tuple[int, float, list[tuple[float, float]]] | None:
    """(samples, accumulated nanoseconds, []) of a timing; single samples are not kept."""
    if name not in _METRICS:
        return None
    count, seconds = (rt.metrics()[key] for key in _METRICS[name])
    return count, seconds * 1e9, []


def executed_fallback_ops() -> list[str]:
    """Operators that torch ran on the CPU."""
    return [_fallback_name(op) for op in counters.fallbacks]


def clear_all() -> None:
    """Start all counters from zero."""
    counters.clear()


def _fallback_name(op: str) -> str:
    return op if "::" in op else f"aten::{op}"
