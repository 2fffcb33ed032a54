"""The page of a job: what a reader finds on it, whatever the job did."""

from __future__ import annotations

import html.parser
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trcomp import charts, job_page
from trcomp.backends.base import Failure, JobStatus, Transition
from trcomp.backends.record import LocalRecord

_BEGIN = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)


def record(
    *statuses: JobStatus, failure: Failure | None = None, metrics: dict[str, str] | None = None
) -> LocalRecord:
    steps = [JobStatus.PREPARING, *statuses]
    return LocalRecord(
        name="vit",
        backend="process",
        instance_type="local_process",
        hosts=("algo-1",),
        transitions=tuple(
            Transition(status=status, time=_BEGIN + timedelta(seconds=10 * i))
            for i, status in enumerate(steps)
        ),
        failure=failure,
        metric_definitions=metrics or {},
        directory=Path("/jobs/vit"),
    )


_INTERRUPTIONS = [
    {"kind": "read", "name": "", "line": "train.py:60", "count": 9, "cuts": 7, "seconds": 0.5},
    {"kind": "operator", "name": "nonzero", "line": "a.py:3", "count": 3, "cuts": 3, "seconds": 1},
]


def rank(number: int, **more: Any) -> dict[str, Any]:
    compiles = [
        {"step": 0, "at_seconds": 1, "seconds": 6.5, "operations": 145, "loaded": False}
        | {"bytes": 2_500_000, "reason": "", "line": "/opt/ml/code/train.py:53"},
        {"step": 2, "at_seconds": 9, "seconds": 0.5, "operations": 144, "loaded": True}
        | {"reason": "input 3 (float32) was 8x3 and is 5x3", "line": "/opt/ml/code/train.py:53"},
    ]
    timeline = {
        "steps": [[2, 0.05, 0.06], [3, 0.9, 0.9], [4, 0.05, 0.05]],
        "compiles": compiles,
        "made": [[10.0, 1], [11.0, 3], [13.0, 4]],
        "memory": [[0.5, 3e8], [1.0, 9e8]],
    }
    own = {"rank": number, "host": "algo-1", "steps": 4, "steady_step_seconds": 0.05}
    own |= {"device": "NVIDIA H200", "interruptions": _INTERRUPTIONS}
    own["profile"] = {"steps": [10, 15], "file": f"profile/rank-{number}.trace.json.gz"}
    spent = {"compile_seconds": 7.0, "record_seconds": 1.0, "input_wait_seconds": 0.25}
    return own | spent | {"timeline": timeline, "versions": {"torch": "2.13.0"}} | more


def report(*ranks: dict[str, Any], **totals: Any) -> dict[str, Any]:
    reasons = [{"name": "NCCL_DEBUG", "value": "WARN", "reason": "Errors are shown."}]
    environment = [{"host": "algo-1", "rank": 0, "variables": reasons}]
    return {"job": "process://vit", "totals": totals, "ranks": ranks, "environment": environment}


class _Checker(html.parser.HTMLParser):
    """Fails at a tag that is closed in the wrong place; holds the text and the tags."""

    _EMPTY = ("meta", "link", "br")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self._EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def test_a_completed_job_shows_how_it_went() -> None:
    found = report(rank(0), rank(1), num_ranks=2, steps=4, steady_step_seconds=0.05)
    lines = ["[rank 0] step 10: loss 1.5", "[rank 1] step 10: loss 9.5", "[rank 0] loss=0.5"]
    page = job_page.page(record(JobStatus.TRAINING, JobStatus.COMPLETED), found, lines)
    shown = _Checker(page)
    for text in (
        "process://vit",
        "Completed",
        "1 host of local_process, 2026-11-30 12:00:00 UTC, 20 s",
        "steady step50 ms",
        "input 3 (float32) was 8x3 and is 5x3",
        "train.py:53",
        "NCCL_DEBUG",
        "Errors are shown.",
        "torch 2.13.0",
        "2.5 MB",
        "NVIDIA H200",
        "97500 mstrain.py:60",
        "nonzero331 sa.py:3",
        "rank 1, steps 10 to 15",
        "Keep nonzero off the step",
        "costnothing: it runs on this machine",
    ):
        assert text in shown.text
    assert "/opt/ml" not in shown.text
    assert "Why it failed" not in shown.text
    headings = re.findall("<h2>(.*?)</h2>", page)
    assert headings == [
        *("Step time", "Throughput, steps per second", "Where the time goes"),
        *("What would help most", "loss", "Memory", "Executables", "Values read within steps"),
        *("Not through XLA", "Profile", "Workers", "Environment, and why", "States"),
    ]
    # The loss of the first rank alone; the step that compiled again stands out, in both ranks.
    assert page.count('class="mark" d=') == 2 and "9.5" not in shown.text


def _with_steps_made(number: int, made: list[list[float]], **more: Any) -> dict[str, Any]:
    return rank(number, timeline={"made": made}, **more)


def test_throughput_is_that_of_all_ranks_as_it_was_at_each_time() -> None:
    ranks = [
        _with_steps_made(0, [[10, 1], [11, 3], [12, 5], [13, 5], [14, 7]], samples_per_step=8.0),
        _with_steps_made(1, [[12, 1], [14, 3]], samples_per_step=16.0),
    ]
    expected = charts.lines(
        {"samples": [(10.5, 16), (11.5, 16), (12.5, 16), (13.5, 32)]},
        title="Samples per second of all ranks",
        x_label="seconds",
    )
    page = job_page.page(record(JobStatus.COMPLETED), report(*ranks), [])
    assert "<h2>Throughput, samples per second</h2>" in page and expected in page


def test_throughput_is_that_of_all_ranks_where_the_course_of_some_alone_is_kept() -> None:
    def drawn(*ranks: dict[str, Any]) -> str:
        page = job_page.page(record(), report(*ranks), [])
        return page.partition("Throughput, samples per second")[2].partition("</section>")[0]

    made = [[10.0, 1], [11.0, 3], [12.0, 5]]
    all_kept = [_with_steps_made(n, made, samples_per_step=8.0) for n in range(4)]
    some_kept = all_kept[:2] + [one | {"timeline": None} for one in all_kept[2:]]
    assert drawn(*all_kept) == drawn(*some_kept) != drawn(*all_kept[:2])


def test_where_samples_are_not_counted_throughput_is_steps() -> None:
    ranks = [_with_steps_made(n, [[1, 1], [2, 5], [3, 7]]) for n in range(2)]
    expected = charts.lines(
        {"steps": [(1.5, 4), (2.5, 2)]}, title="Steps per second of all ranks", x_label="seconds"
    )
    page = job_page.page(record(JobStatus.COMPLETED), report(*ranks), [])
    assert expected in page


@pytest.mark.parametrize(
    "made", [[], [[1, 1]], [[1, 1], [1, 2]], [[2, 1], [1, 9]], [[0, 0], [1e15, 1e15]]]
)
def test_whatever_a_rank_says_that_it_made_there_is_a_page(made: list[list[float]]) -> None:
    ranks = [_with_steps_made(0, made), _with_steps_made(1, [[3, 1], [2, 4], [5, 2]])]
    _Checker(job_page.page(record(JobStatus.COMPLETED), report(*ranks), []))


def test_a_failed_job_says_why_first() -> None:
    failure = Failure(
        message="ValueError: <bad>",
        exit_code=1,
        host="algo-1",
        rank=1,
        traceback="Traceback: & more",
        last_lines=("one", "two"),
    )
    page = job_page.page(record(JobStatus.FAILED, failure=failure), report(), [])
    shown = _Checker(page)
    assert "ValueError: <bad>" in shown.text and "<bad>" not in page
    assert "rank 1 on algo-1, exit code 1" in shown.text
    assert "Traceback: & more" in shown.text and "one\ntwo" in shown.text
    assert "Step time" not in shown.text


def test_of_a_job_with_many_ranks_those_that_stand_out_are_drawn() -> None:
    ranks = [rank(n, steady_step_seconds=0.05 + n * 1e-6) for n in range(1000)]
    ranks[500] |= {"steady_step_seconds": 3.0}
    failure = Failure(message="ValueError", exit_code=1, host="algo-1", rank=321)
    environment = [{"host": f"algo-{n}", "rank": n, "variables": []} for n in range(125)]
    found = report(*ranks) | {"environment": environment}
    page = job_page.page(record(JobStatus.FAILED, failure=failure), found, [])
    text = _Checker(page).text
    assert "Of 1,000 ranks 16 are drawn: the first, those furthest behind or slowest" in text
    assert "And 109 more hosts" in text
    drawn = set(re.findall(r">rank (\d+)</text>", page))
    assert len(drawn) == 16 and {"0", "321", "500"} <= drawn
    assert len(page) < 200_000


def test_metric_definitions_say_what_is_shown() -> None:
    defined = record(JobStatus.COMPLETED, metrics={"acc": r"accuracy (\S+)"})
    page = job_page.page(
        defined, report(), ["loss 3", "accuracy 0.5", "accuracy nan", "accuracy 1"]
    )
    assert "<h2>acc</h2>" in page and "<h2>loss</h2>" not in page


def test_a_page_needs_nothing_but_itself() -> None:
    page = job_page.page(record(JobStatus.COMPLETED), report(rank(0)), [])
    for tag, attributes in _Checker(page).tags:
        assert tag != "script"
        place = attributes.get("href") or attributes.get("src") or "data:"
        # Of the job's own files it only says where they are.
        assert place.startswith("data:") or (tag, place[:13]) == ("a", "file:///jobs/")
    assert "url(" not in page and "@import" not in page


_NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(st.tuples(_NUMBERS, _NUMBERS), max_size=20), st.booleans())
@example([(0.0, 5e-324)], True)  # A point that is hardly above the axis.
@example([(0.0, -1e308), (1.0, 1e308)], False)
def test_any_numbers_make_a_chart_or_none(
    points: list[tuple[float, float]], from_zero: bool
) -> None:
    drawn = charts.lines({"x": points}, title="t", x_label="x", from_zero=from_zero)
    if drawn:
        _Checker(drawn)
        assert "nan" not in drawn and "inf" not in drawn.replace("infinity", "")


@given(st.text(), st.text())
def test_any_text_is_text(name: str, line: str) -> None:
    failure = Failure(message=name, exit_code=1, traceback=line, last_lines=(line,))
    ranks = rank(0, host=name, versions={name: line})
    _Checker(job_page.page(record(JobStatus.FAILED, failure=failure), report(ranks), [line, name]))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0 s"), (0.0484, "48.4 ms"), (17.04, "17 s"), (125, "2 min 05 s"), (7260, "2 h 01 min")],
)
def test_durations_have_the_unit_that_suits_them(value: float, text: str) -> None:
    assert charts.seconds(value) == text


def test_thinning_keeps_peaks() -> None:
    points = [(float(i), 100.0 if i == 777 else 1.0) for i in range(10_000)]
    thin = charts.thinned(points, 100)
    assert len(thin) <= 100 and (777.0, 100.0) in thin


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.12345, "0.123"), (999.0, "999"), (999.7, "1,000"), (1500.0, "1,500"), (2e6, "2,000,000")],
)
def test_numbers_of_an_axis_have_no_exponents(value: float, text: str) -> None:
    assert charts.number(value) == text
