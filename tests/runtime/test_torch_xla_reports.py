"""`met.metrics_report()` is read as torch_xla's own tools read it, value by value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import trcomp.compat
import trcomp.runtime as rt
from trcomp.runtime.samples import note

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.filterwarnings("ignore:torch_xla:DeprecationWarning"),
]

_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_DURATION = "".join(
    rf"(?:(?P<{unit}>{'[0-9.]+' if unit == 'us' else '[0-9]+'}){unit})?" for unit in _SECONDS
)
_SIZES = ("B", "KB", "MB", "GB", "TB", "PB")
_PERCENTS = (1, 5, 10, 20, 50, 80, 90, 95, 99)


@dataclass
class Metric:
    """One section; durations in seconds, sizes in bytes."""

    samples: int
    total: float
    rates: dict[str, float] = field(default_factory=dict)
    percentiles: dict[int, float] = field(default_factory=dict)


def value_of(text: str) -> float:
    """A bare number; a duration of whole units, the microseconds with a fraction; or a size."""
    if re.fullmatch(r"[0-9.]+(e[+-]\d+)?", text):
        return float(text)
    if sized := re.fullmatch(r"([0-9.]+)([KMGTP]?B)", text):
        return float(sized[1]) * 1024.0 ** _SIZES.index(sized[2])
    parts = re.fullmatch(_DURATION, text)
    assert parts is not None, text
    found = {unit: float(count) for unit, count in parts.groupdict().items() if count is not None}
    assert found, text
    return sum(count * _SECONDS[unit] for unit, count in found.items())


def parsed(report: str) -> tuple[dict[str, Metric], dict[str, int]]:
    """The metrics and counters of a report: sections up to an empty line; a stray line is an error.

    Metric: NAME                            Counter: NAME
      TotalSamples: NUMBER                    Value: NUMBER
      Accumulator: VALUE
      ValueRate: VALUE / second
      Rate: NUMBER / second
      Percentiles: 1%=VALUE; 5%=VALUE; …
    """
    metrics: dict[str, Metric] = {}
    counters: dict[str, int] = {}
    head, _, rest = report.partition("\n\n")
    assert not re.search(r"^ *(Metric|Counter|Accumulator|Value):", rest, re.MULTILINE)
    lines = iter(head.splitlines())
    for line in lines:
        kind, name = line.split(": ")
        assert kind in {"Metric", "Counter"} and not re.search(r"\s", name)
        if kind == "Counter":
            counters[name] = int(_field(lines, "Value"))
            continue
        samples, total = int(_field(lines, "TotalSamples")), value_of(_field(lines, "Accumulator"))
        metric = metrics[name] = Metric(samples, total)
        for label, text in _fields_to(lines, "Percentiles"):
            if label != "Percentiles":
                rate, unit = text.split(" / ")
                assert unit == "second"
                metric.rates[label] = value_of(rate)
                continue
            pairs = [pair.split("%=") for pair in text.split("; ")]
            metric.percentiles = {int(percent): value_of(value) for percent, value in pairs}
    return metrics, counters


def _field(lines: Iterator[str], label: str) -> str:
    found, text = next(lines).split(": ")
    assert found == f"  {label}"
    return text


def _fields_to(lines: Iterator[str], last: str) -> Iterator[tuple[str, str]]:
    for line in lines:
        label, text = line.strip().split(": ")
        yield label, text
        if label == last:
            return
    raise AssertionError(f"There is no {last}.")


@pytest.fixture(scope="module")
def met() -> Any:
    trcomp.compat.install()
    import torch_xla.debug.metrics as metrics

    return metrics


def test_a_report_says_what_was_measured(met: Any) -> None:
    met.clear_all()
    model = torch.nn.Linear(64, 64).to("xla")
    for _ in range(3):
        model(torch.ones(8, 64).to("xla")).sum().backward()
        rt.sync()
        model.weight.grad.cpu()
    torch.geqrf(torch.eye(2, device="xla"))
    metrics, counters = parsed(met.metrics_report())
    assert counters == {name: met.counter_value(name) for name in met.counter_names()}
    assert counters["aten::geqrf"] == 1 and counters["MarkStep"] == 3
    assert list(metrics) == met.metric_names()
    assert {"CompileTime", "ExecuteTime", "OutboundData", "InboundData"} <= set(metrics)
    for name, found in metrics.items():
        samples, total, recent = met.metric_data(name)
        # What torch_xla keeps in nanoseconds is written in units of time.
        scale = 1e-9 if name.endswith("Time") else 1.0
        assert found.samples == samples
        assert found.total == pytest.approx(total * scale, rel=0.01, abs=1e-9)
        assert list(found.percentiles) == list(_PERCENTS)
        in_order = list(found.percentiles.values())
        assert in_order == sorted(in_order)
        values = [value * scale for _, value in recent]
        assert min(values) * 0.99 - 1e-9 <= in_order[0] <= in_order[-1] <= max(values) * 1.01 + 1e-9
        assert set(found.rates) == ({"ValueRate", "Rate"} if samples > 1 else set())


@settings(max_examples=200)
@given(st.floats(0, 1e6) | st.floats(0, 2e-3) | st.sampled_from([0.0, 1e-9, 59.9999999996, 1e-3]))
def test_any_time_is_read_back_to_the_nanosecond(met: Any, seconds: float) -> None:
    met.clear_all()
    note("compile_seconds", seconds)
    metrics, _ = parsed(met.metrics_report())
    assert metrics["CompileTime"].total == pytest.approx(seconds, abs=1e-9, rel=1e-12)
    assert set(metrics["CompileTime"].percentiles.values()) == {metrics["CompileTime"].total}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (5e-9, "000.005us"),
        (0.0346789, "034ms678.900us"),
        (2.5, "02s500ms000.000us"),
        (90061.25, "01d01h01m01s250ms000.000us"),
    ],
)
def test_a_time_begins_with_its_largest_unit(met: Any, seconds: float, text: str) -> None:
    met.clear_all()
    note("compile_seconds", seconds)
    assert f"  Accumulator: {text}\n" in met.metrics_report()


@given(st.integers(0, 2**62))
def test_any_size_is_read_back_as_exactly_as_it_is_written(met: Any, size: int) -> None:
    met.clear_all()
    note("upload_bytes", float(size))
    metrics, _ = parsed(met.metrics_report())
    assert metrics["OutboundData"].total == pytest.approx(size, rel=0.005, abs=0.005)
