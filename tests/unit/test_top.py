"""`trcomp top`: what a reader sees of a running job, whatever is known of it."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_job_page import record
from trcomp.backends.base import JobStatus, Stretch
from trcomp.line_metrics import JobMetrics
from trcomp.top_command import RankNow, Screen, sparkline


def stretch(**more: Any) -> Stretch:
    measured = {"time": time.time(), "rank": 0, "host": "algo-1", "step": 20, "steps": 10}
    took = {"step_seconds": 0.1, "input_wait_seconds": 0.5, "memory_bytes": 2_000_000_000}
    return Stretch(**measured | took | more)


def screen(*ranks: RankNow, **more: Any) -> str:
    shown = {"record": record(JobStatus.TRAINING), "ranks": ranks, "remaining_seconds": None}
    shown |= {"metrics": {}, "last_line": "", "remote": False} | more
    return Screen(**shown).text()


def test_a_rank_is_told_by_what_it_did_lately() -> None:
    old = stretch(time=time.time() - 60, step=5, step_seconds=9.0)
    rank = RankNow.of([old, stretch(), stretch(step=30, step_seconds=0.3)], time.time())
    assert rank.step == 30
    assert rank.step_seconds == pytest.approx(0.2)
    assert rank.input_wait_share == pytest.approx(0.25)


def test_the_slowest_rank_sets_the_pace_and_a_silent_one_is_named() -> None:
    quick = RankNow.of([stretch()], time.time())
    slow = RankNow.of([stretch(rank=1, step=19, step_seconds=0.5)], time.time() + 100)
    text = screen(quick, slow, remaining_seconds=90.0, last_line="[rank 0] [50%] loss 1")
    assert "step 19   2 steps/s   about 90 s left" in text
    assert "silent for 100 s" in text and text.count("silent") == 1
    assert "500 ms" in text and "50%" in text and "2 GB" in text
    assert text.endswith("[rank 0] [50%] loss 1")


def test_of_many_ranks_those_that_stand_out_are_shown() -> None:
    now = time.time()
    ranks = [RankNow.of([stretch(rank=n)], now) for n in range(1000)]
    ranks[700] = RankNow.of([stretch(rank=700, step=7)], now)
    text = screen(*ranks)
    assert re.search(r"^700 ", text, re.M) and re.search(r"^0 ", text, re.M)
    assert "and 984 more ranks: these are the first, those furthest behind or slowest" in text
    assert text.count("\n") < 30


def test_what_is_not_known_is_said() -> None:
    assert "No step has ended yet." in screen()
    assert "come with its results" in screen(remote=True)
    over = screen(remote=True, record=record(JobStatus.COMPLETED))
    assert "are with its results" in over and "trcomp report vit" in over
    first = RankNow.of([stretch(step_seconds=None)], time.time())
    assert "steps/s" not in screen(first)


def test_losses_are_the_first_ranks_where_the_job_defines_no_metrics() -> None:
    lines = ["[rank 0] loss 2", "[rank 1] loss 9", "[rank 0] loss: 1.5"]
    found = JobMetrics({})
    found.read(lines)
    assert found.values == {"loss": [2.0, 1.5]}
    assert "loss  1.5  █▁" in screen(metrics=found.values)


@given(st.lists(st.floats()), st.integers(1, 50))
def test_any_numbers_make_a_line(values: list[float], width: int) -> None:
    assert len(sparkline(values, width)) <= width
