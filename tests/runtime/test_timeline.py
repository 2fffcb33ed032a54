"""What a worker says of its time: little, however long it trains, and no peak lost."""

from __future__ import annotations

import pytest
import torch

import trcomp.runtime as rt
from trcomp.runtime import timeline

pytestmark = pytest.mark.runtime


def test_each_step_has_its_time_until_there_are_many() -> None:
    assert timeline.steps([]) == timeline.steps([1.0]) == []
    assert timeline.steps([0.0, 1.0, 3.0]) == [[2, 1.0, 1.0], [3, 2.0, 2.0]]


def test_many_steps_are_summed_up_with_their_longest() -> None:
    marks = [float(i) for i in range(100_001)]
    marks[50_000:] = [mark + 7.0 for mark in marks[50_000:]]
    found = timeline.steps(marks)
    assert len(found) <= 500
    assert max(longest for _, _, longest in found) == 8.0
    assert {median for _, median, _ in found} == {1.0}


def test_how_many_steps_were_made_when_has_the_first_and_the_last() -> None:
    assert timeline.made([]) == []
    assert timeline.made([3.0]) == [[3.0, 1]]
    assert timeline.made([3.0, 4.0, 6.0]) == [[3.0, 1], [4.0, 2], [6.0, 3]]
    many = timeline.made([float(i) for i in range(10_001)])
    assert len(many) <= 501 and many[0] == [0.0, 1] and many[-1] == [10_000.0, 10_001]


def test_a_compile_says_what_of_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    # Only so many are kept, and other tests have compiled.
    monkeypatch.setattr(timeline, "_compiles", [])
    x = torch.ones(3, 41, device="xla")
    (x * 2 + 1).sum().item()
    rt.sync()
    event = timeline.summary([])["compiles"][0]
    assert event["operations"] >= 2 and event["seconds"] > 0
    assert not event["loaded"] and "test_timeline.py:" in event["line"]


def test_memory_is_noted_less_often_as_time_goes_on() -> None:
    for _ in range(5000):
        timeline.note_memory()
    points = timeline.summary([])["memory"]
    assert len(points) <= 501
    assert all(size > 1e6 for _, size in points)
    assert [at for at, _ in points] == sorted(at for at, _ in points)
