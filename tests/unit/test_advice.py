"""What `trcomp doctor JOB` makes of a report: the changes that would save most, in plain words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from trcomp import advice, doctor_command, remedies
from trcomp.backends.base import JobStatus
from trcomp.cli import cli
from trcomp.errors import SpecError
from trcomp.job import Job

RANK: dict[str, Any] = {
    "rank": 0,
    "steps": 400,
    "recorded_nodes": 64_000,
    "compile_seconds": 30.0,
    "record_seconds": 12.0,
    "sync_seconds": 1.0,
    "run_seconds": 40.0,
    "input_wait_seconds": 6.0,
    "causes": [
        {
            "kind": "shape",
            "example": 'batch["input_ids"] (int64) was 8x128 and is 8x93',
            "line": "train.py:31",
            "compiles": 7,
            "seconds": 21.0,
        },
        {"kind": "first", "example": "", "line": "", "compiles": 2, "seconds": 9.0},
    ],
    "interruptions": [
        {
            "kind": "read",
            "name": "",
            "line": "train.py:40",
            "count": 400,
            "cuts": 400,
            "seconds": 38.0,
        },
        {
            "kind": "operator",
            "name": "nonzero",
            "line": "model.py:12",
            "count": 400,
            "cuts": 400,
            "seconds": 2.5,
        },
    ],
}


def report(*ranks: dict[str, Any], job: str = "process://vit") -> dict[str, Any]:
    return {"job": job, "totals": {"steps": 400}, "ranks": list(ranks), "environment": []}


def test_the_three_costliest_come_first_each_with_its_line_and_seconds() -> None:
    found = advice.most_helpful(report(RANK))
    assert [(one.seconds, one.line) for one in found] == [
        (21.0, "train.py:31"),
        # Of 38 s at reads no more is lost than the host had to do in that time.
        (13.0, "train.py:40"),
        (6.0, ""),
    ]
    assert found[0].change == (
        'Give batch["input_ids"] few shapes: pad to one length, or to a few (buckets)'
    )
    assert "7 compiles for it" in found[0].because
    assert "nonzero" in advice.most_helpful(report(RANK), 4)[3].change


def test_the_log_of_a_job_has_said_the_same() -> None:
    (cause, _) = RANK["causes"]
    said = remedies.remedy(cause["kind"], cause["example"])
    assert advice.most_helpful(report(RANK))[0].change.lower() == said


def test_what_nothing_can_be_done_about_is_no_advice() -> None:
    switched = {"kind": "mode", "example": "eval() after train()", "line": "a.py:1"}
    needed = RANK | {"causes": [switched | {"compiles": 2, "seconds": 60.0}], "interruptions": []}
    assert [one.change for one in advice.most_helpful(report(needed))] == [
        "Read input faster: more num_workers, or batches made beforehand"
    ]
    assert remedies.remedy("mode", "eval() after train()").startswith("nothing, if ")
    assert remedies.remedy("first", "") == ""


def test_the_rank_that_lost_most_speaks() -> None:
    slow = RANK | {"rank": 1, "input_wait_seconds": 50.0}
    (first, *_) = advice.most_helpful(report(RANK, slow))
    assert (first.seconds, first.change.split(":")[0]) == (50.0, "Read input faster")


def test_recording_is_to_blame_only_where_the_device_waits_for_it() -> None:
    quiet = {"causes": [], "interruptions": [], "input_wait_seconds": 0.0}
    assert advice.most_helpful(report(RANK | quiet)) == []
    (found,) = advice.most_helpful(report(RANK | quiet | {"run_seconds": 1.0}))
    assert found.change.startswith("Record less") and found.seconds == pytest.approx(0.64)


def test_executables_are_kept_for_the_next_job_in_the_cloud_alone() -> None:
    fresh = RANK | {"interruptions": [], "loads": 0}
    changes = [one.change for one in advice.most_helpful(report(fresh, job="sagemaker://vit"))]
    assert any("cache=" in change for change in changes)
    assert not any("cache=" in one.change for one in advice.most_helpful(report(fresh)))


def test_without_xla_the_steps_themselves_count() -> None:
    plain = {"rank": 0, "steps": 100, "steady_step_seconds": 0.5, "input_wait_seconds": 0.1}
    assert advice.shares(report(plain)) == {"steps without XLA": 49.9, "waiting for input": 0.1}
    assert advice.most_helpful(report(plain)) == []
    (found,) = advice.most_helpful(report(plain | {"input_wait_seconds": 30.0}))
    assert found.change.startswith("Read input faster") and found.seconds == 30.0


def test_a_report_of_an_earlier_version_or_none_gives_no_advice() -> None:
    assert advice.most_helpful(report()) == []
    assert advice.most_helpful(report({"rank": 0, "compile_seconds": 9.0})) == []


def examined(
    monkeypatch: pytest.MonkeyPatch, measured: dict[str, Any], *options: str
) -> tuple[str, BaseException | None]:
    monkeypatch.setattr(Job, "attach", classmethod(lambda cls, handle: Job(handle)))
    monkeypatch.setattr(Job, "report", lambda job: measured)
    result = CliRunner().invoke(doctor_command.examine, ["process://vit", *options])
    return result.output, result.exception


def test_the_command_says_it_in_words_and_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    text, _ = examined(monkeypatch, report(RANK))
    assert text.startswith("process://vit: 400 steps in 89.0 s; 34% compiling, ")
    assert "1. Give batch" in text and "At train.py:31. Saves up to 21.0 s." in text
    values = json.loads(examined(monkeypatch, report(RANK), "--json")[0])
    assert values["seconds"]["compiling"] == 30.0
    assert [change["line"] for change in values["changes"]][:1] == ["train.py:31"]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            JobStatus.TRAINING,
            "no measurements yet: workers write them as they end; `trcomp top",
        ),
        (JobStatus.FAILED, "has left no measurements: its workers"),
    ],
)
def test_a_job_without_measurements_is_told_so(
    monkeypatch: pytest.MonkeyPatch, status: JobStatus, words: str
) -> None:
    monkeypatch.setattr(Job, "status", lambda job: status)
    assert words in examined(monkeypatch, report())[0]
    assert words in CliRunner().invoke(cli, ["report", "process://vit"]).output


def test_words_about_the_machine_do_not_go_with_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    _, error = examined(monkeypatch, report(RANK), "--gpu", "--online")
    assert isinstance(error, SpecError)
    assert [problem.field for problem in error.problems] == ["--gpu", "--online"]
