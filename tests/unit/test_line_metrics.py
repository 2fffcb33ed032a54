"""Metrics in a job's lines, by the patterns of its metric definitions."""

from __future__ import annotations

from trcomp.line_metrics import LineMetrics


def test_values_of_each_metric_in_the_order_of_their_lines() -> None:
    found = LineMetrics({"loss": r"loss=([\de.-]+)", "count": r"\d+ images", "broken": "("})
    found.read(["[rank 0] loss=0.5 loss=nope", "loss=2.5e-1, 3 images"])
    found.read(["nothing", "loss=0.125"])
    assert found.values == {"loss": [0.5, 0.25, 0.125]}
    assert found.latest == "loss 0.125"
    assert found.unreadable == ("broken",)
