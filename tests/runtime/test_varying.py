"""A graph that is compiled again for another shape says which input varies, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import trcomp.runtime as rt
from trcomp.follow import report_rows
from trcomp.runtime import report, varying
from trcomp.runtime.device import DEVICE

pytestmark = pytest.mark.runtime


@pytest.fixture(autouse=True)
def nothing_seen() -> Iterator[None]:
    varying.clear()
    yield
    varying.clear()


def train(lengths: list[int]) -> None:
    """Steps of a small model on sequences of these lengths."""
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(11, 4)
    layers = [torch.nn.Linear(4, 4) for _ in range(8)]
    model = torch.nn.Sequential(embedding, *layers).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rt.sync()
    for length in lengths:
        tokens = torch.ones(2, length, dtype=torch.long).to(DEVICE)
        optimizer.zero_grad()
        model(tokens).square().mean().backward()
        optimizer.step()
        rt.sync()


def test_the_input_that_varies_is_named_with_its_shapes_and_the_line() -> None:
    train([5, 5, 6, 7, 6, 9])
    graph = varying.summary()[0]
    assert graph["compiles"] == 4
    (tokens,) = (one for one in graph["inputs"] if one["dtype"] == "int64")
    assert tokens["shapes"] == [(2, 5), (2, 6), (2, 7), (2, 9)]
    assert "test_varying.py:" in graph["line"]
    rows: list[Any] = report_rows({"varying": report.summarize()["varying"]})
    (row,) = (text for name, text in rows if name == "compiled again")
    assert row.startswith("4 times a graph of ")
    assert "came as 2x5, 2x6, ... 2x9; pad to one length or to a few" in row


def test_one_shape_has_nothing_to_say_and_a_short_last_batch_no_row() -> None:
    train([15, 15, 15])
    assert varying.summary() == []
    varying.clear()
    train([25, 25, 24])
    assert [graph["compiles"] for graph in varying.summary()] == [2]
    assert report_rows({"varying": varying.summary()}) == []
