"""A loop that ends no step is cut into graphs that are alike."""

from __future__ import annotations

import pytest
import torch

import trcomp.runtime as rt
from trcomp.runtime import overdue

pytestmark = pytest.mark.runtime


def loop(device: str, rounds: int) -> float:
    x, weight = torch.ones(4, 4, device=device), torch.full((4, 4), 0.1, device=device)
    for _ in range(rounds):
        x = torch.tanh(x @ weight) + x * 0.5
        x = torch.sigmoid(x) + 0.25
    return x.sum().item()


def test_a_long_loop_is_cut_where_an_operation_recurs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overdue, "LIMIT", 25)
    monkeypatch.setattr(overdue._Place, "signature", None)
    rt.sync()
    before = rt.metrics()
    assert loop("xla", 60) == pytest.approx(loop("cpu", 60), rel=1e-6)
    after = rt.metrics()
    assert after["executions"] - before["executions"] > 10
    assert after["compiles"] - before["compiles"] <= 3
    assert loop("xla", 60) == pytest.approx(loop("cpu", 60), rel=1e-6)
    assert rt.metrics()["compiles"] - after["compiles"] <= 2


def test_a_place_that_no_longer_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overdue, "LIMIT", 10)
    monkeypatch.setattr(overdue._Place, "signature", None)
    rt.sync()
    x = torch.ones(3, device="xla")
    for _ in range(12):
        x = x.cos()
    executions = rt.metrics()["executions"]
    for _ in range(25):
        x = x.sin()
    assert rt.metrics()["executions"] > executions
    rt.sync()
