"""`import torch_xla.debug.metrics as met`: trcomp's counters and measurements by torch_xla's names.

Times are nanoseconds, as torch_xla has them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence

import trcomp.runtime as rt
from trcomp.runtime.metrics import counters
from trcomp.runtime.samples import series

from .._missing import missing

__getattr__ = missing(__name__)

_COUNTERS = {
    "UncachedCompile": "compiles",
    "CachedCompile": "cache_hits",
    "EarlySyncLiveTensorsCount": "early_syncs",
    "CreateXlaTensor": "recorded_nodes",
    "PersistentCacheHit": "loads",
    "ExecuteComputation": "executions",
}
_MARKS = "MarkStep"
_METRICS = {
    "CompileTime": ("compile_seconds", 1e9),
    "ExecuteTime": ("execute_seconds", 1e9),
    "EagerOpCompileTime": ("eager_compile_seconds", 1e9),
    "EagerOpExecuteTime": ("eager_execute_seconds", 1e9),
    "TransferToDeviceTime": ("upload_seconds", 1e9),
    "TransferFromDeviceTime": ("download_seconds", 1e9),
    "OutboundData": ("upload_bytes", 1.0),
    "InboundData": ("download_bytes", 1.0),
    "TensorsGraphSize": ("graph_nodes", 1.0),
    "InputOutputAliasCount": ("donated_buffers", 1.0),
}
_SHORT = ("CompileTime", "ExecuteTime", "TransferToDeviceTime", "TransferFromDeviceTime")
_PERCENTILES = (0.01, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.99)


def counter_names() -> list[str]:
    """Names of the counters that counted; operators that ran on the CPU as `aten::name`."""
    counted = [name for name, ours in _COUNTERS.items() if rt.metrics()[ours]]
    marked = [_MARKS] if counter_value(_MARKS) else []
    return [*counted, *marked, *executed_fallback_ops()]


def counter_value(name: str) -> int | None:
    """A counter's value, None if nothing of that name was counted."""
    if name == _MARKS:
        return series["syncs"].count or None
    if name in _COUNTERS:
        return int(rt.metrics()[_COUNTERS[name]]) or None
    return {_fallback_name(op): count for op, count in counters.fallbacks.items()}.get(name)


def metric_names() -> list[str]:
    """Names of the measurements that were made."""
    return [name for name, (ours, _) in _METRICS.items() if series[ours].count]


def metric_data(name: str) -> tuple[int, float, list[tuple[float, float]]] | None:
    """(how many, their sum, the last of them as (seconds since the epoch, value)).

    None if nothing of that name was measured.
    """
    ours, factor = _METRICS.get(name, ("", 1.0))
    if ours not in series or not series[ours].count:
        return None
    held = series[ours]
    epoch = time.time() - time.monotonic()
    recent = [(epoch + when, value * factor) for when, value in held.recent]
    return held.count, held.total * factor, recent


def executed_fallback_ops() -> list[str]:
    """Operators that torch ran on the CPU."""
    return [_fallback_name(op) for op in counters.fallbacks]


def metrics_report() -> str:
    """All measurements and counters as text, then trcomp's own report."""
    return "\n".join([*_lines(metric_names(), counter_names()), "", rt.metrics_report()])


def short_metrics_report(
    counter_names: Sequence[str] | None = None, metric_names: Sequence[str] | None = None
) -> str:
    """Some measurements and counters as text.

    Args:
        counter_names: None is compiles, steps, early syncs and operators run on the CPU.
        metric_names: None is the times.
    """
    chosen = counter_names or [*list(_COUNTERS)[:3], _MARKS, *executed_fallback_ops()]
    return "\n".join(_lines(metric_names or _SHORT, chosen))


def clear_counters() -> None:
    """Start the counters from zero."""
    counters.clear()
    series.pop("syncs", None)


def clear_metrics() -> None:
    """Forget the measurements."""
    for name in [name for name in series if name != "syncs"]:
        del series[name]


def clear_all() -> None:
    """Start everything from zero."""
    clear_counters()
    clear_metrics()


def _lines(metrics: Iterable[str], counted: Iterable[str]) -> list[str]:
    lines = []
    for name in metrics:
        data = metric_data(name)
        if data is not None:
            lines += _metric_lines(name, *data)
    for name in counted:
        value = counter_value(name)
        if value is not None:
            lines += [f"Counter: {name}", f"  Value: {value}"]
    return lines


def _metric_lines(
    name: str, count: int, total: float, recent: list[tuple[float, float]]
) -> list[str]:
    lines = [
        f"Metric: {name}",
        f"  TotalSamples: {count}",
        f"  Accumulator: {_text(name, total)}",
    ]
    seconds = recent[-1][0] - recent[0][0]
    if seconds > 0:
        value = sum(value for _, value in recent)
        lines.append(f"  ValueRate: {_text(name, value / seconds)} / second")
        lines.append(f"  Rate: {len(recent) / seconds:g} / second")
    values = sorted(value for _, value in recent)
    ranks = [f"{p:.0%}={_text(name, values[int(p * len(values))])}" for p in _PERCENTILES]
    return [*lines, f"  Percentiles: {'; '.join(ranks)}"]


def _text(name: str, value: float) -> str:
    """A value with its unit."""
    if name.endswith("Time"):
        return _time(value)
    if not name.endswith("Data"):
        return f"{value:.2f}"
    power = min(int(math.log(value, 1024)), len(_SIZES) - 1) if value >= 1 else 0
    return f"{value / 1024**power:.2f}{_SIZES[power]}"


_SIZES = ("B", "KB", "MB", "GB", "TB", "PB")
_UNITS = (("d", 86400e9), ("h", 3600e9), ("m", 60e9), ("s", 1e9), ("ms", 1e6))


def _time(nanoseconds: float) -> str:
    """A time as torch_xla writes it, from its largest unit on: `02s034ms123.456us`."""
    text = ""
    for unit, size in _UNITS:
        count = int(nanoseconds // size)
        nanoseconds -= count * size
        if count or text:
            text += f"{count:0{3 if unit == 'ms' else 2}d}{unit}"
    return f"{text}{nanoseconds / 1e3:07.3f}us"


def _fallback_name(op: str) -> str:
    return op if "::" in op else f"aten::{op}"
