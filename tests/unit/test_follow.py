"""A job on the terminal: what is shown while it runs, and in which order."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.status import Status

from trcomp import Job, JobStatus, JobStoppedError, follow, panel
from trcomp.backends import process
from trcomp.backends.base import JobRecord
from trcomp.backends.record import LocalRecord

STAGES = [JobStatus.PREPARING, JobStatus.STARTING, JobStatus.TRAINING]
FIRST = [["[trcomp] runs", "[pip] installs"], [], ["[rank 0] [red]as it is"], []]


class ScriptedJob(Job):
    """A job that enters the next state and prints the next lines each time it is asked."""

    def __init__(self, directory: Path, end: JobStatus) -> None:
        super().__init__("process://scripted")
        self._lines = iter(FIRST)
        self._states = iter([*[JobStatus.TRAINING] * 5, JobStatus.UPLOADING, end])
        self._record: JobRecord = LocalRecord(
            name="scripted",
            backend="process",
            directory=directory,
            instance_type="local_process",
            hosts=("algo-1",),
            transitions=(),
        )
        for state in STAGES:
            self._record = self._record.entered(state)

    def record(self) -> JobRecord:
        state = next(self._states, self._record.status)
        if state is not self._record.status:
            self._record = self._record.entered(state)
        return self._record

    def read_logs(
        self, cursor: dict[str, int], final: bool = False
    ) -> tuple[list[str], dict[str, int]]:
        return next(self._lines, []), cursor

    def report(self) -> dict[str, object]:
        return {"totals": {}}


@pytest.fixture
def activities(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a terminal says goes on, once for each change."""
    seen: list[str] = []
    update = Status.update

    def noted(status: Status, text: str) -> None:
        if seen[-1:] != [text]:
            seen.append(text)
        update(status, text)

    monkeypatch.setattr(Status, "update", noted)
    monkeypatch.setattr(process, "POLL_SECONDS", 0)
    return seen


def shown(job: Job, *, terminal: bool, show_logs: bool = True, compiles: bool = True) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=40)
    with pytest.raises(JobStoppedError):
        follow.run(job, lambda: None, console, show_logs=show_logs, compiles=compiles)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_pipe_gets_lines_in_order_and_nothing_else(tmp_path: Path, activities: list[str]) -> None:
    text = shown(ScriptedJob(tmp_path, JobStatus.STOPPED), terminal=False)
    parts = [re.sub(r"^ +\d+\.\d s  ", "", line) for line in text.splitlines()]
    assert parts == [
        *STAGES,
        "[trcomp] runs",
        "[pip] installs",
        "[rank 0] [red]as it is",
        "Uploading",
        "Stopped",
        "",
        "job  process://scripted",
    ]
    assert "\x1b" not in text
    assert activities == []


@pytest.mark.parametrize(
    ("compiles", "hint"), [(True, " (the first step compiles)"), (False, "")], ids=["xla", "plain"]
)
def test_a_terminal_says_what_it_waits_for_until_a_worker_speaks(
    tmp_path: Path, activities: list[str], compiles: bool, hint: str
) -> None:
    shown(ScriptedJob(tmp_path, JobStatus.STOPPED), terminal=True, compiles=compiles)
    waiting = f"Training: waiting for the first line{hint} …"
    assert activities == [waiting, "Uploading …"]


def test_without_lines_a_terminal_says_that_it_trains(
    tmp_path: Path, activities: list[str]
) -> None:
    job = ScriptedJob(tmp_path, JobStatus.STOPPED)
    assert "[rank 0]" not in shown(job, terminal=True, show_logs=False)
    assert activities == ["Training …", "Uploading …"]


class InterruptedJob(ScriptedJob):
    """A job that somebody watches who presses Ctrl-C once."""

    stopped = False
    pressed = False

    def record(self) -> JobRecord:
        if not self.pressed:
            self.pressed = True
            raise KeyboardInterrupt
        return super().record()

    def stop(self) -> None:
        self.stopped = True


@pytest.mark.parametrize(
    ("typed", "stopped", "told"),
    [
        ("s", True, "scripted: Stopped."),
        ("d", False, "scripted goes on; `trcomp logs -f process://scripted` follows it."),
        (EOFError(), False, "goes on"),
        (KeyboardInterrupt(), True, "Stopped."),
    ],
)
def test_on_a_terminal_ctrl_c_asks_what_is_to_become_of_a_job_elsewhere(
    typed: str | BaseException,
    stopped: bool,
    told: str,
    tmp_path: Path,
    activities: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    console, job = elsewhere(tmp_path, [typed], monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        follow.run(job, lambda: None, console, show_logs=True, compiles=True)
    assert job.stopped is stopped
    assert told in console.file.getvalue()  # type: ignore[attr-defined]


def test_whoever_watches_on_sees_the_rest(
    tmp_path: Path, activities: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    console, job = elsewhere(tmp_path, [""], monkeypatch)
    with pytest.raises(JobStoppedError):
        follow.run(job, lambda: None, console, show_logs=True, compiles=True)
    assert not job.stopped
    assert "[rank 0] [red]as it is\n" in console.file.getvalue()  # type: ignore[attr-defined]


def test_without_a_terminal_ctrl_c_stops_a_job_elsewhere(
    tmp_path: Path, activities: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, job = elsewhere(tmp_path, [], monkeypatch)
    console = Console(file=io.StringIO(), width=40)
    with pytest.raises(KeyboardInterrupt):
        follow.run(job, lambda: None, console, show_logs=True, compiles=True)
    assert job.stopped


def elsewhere(
    place: Path, answers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[Console, InterruptedJob]:
    """A terminal, and a job elsewhere that is interrupted there, where these answers are typed."""
    monkeypatch.setattr(process, "REMOTE", True)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    typed = iter(answers)

    def answer(*prompt: object) -> str:
        text = next(typed)
        if isinstance(text, BaseException):
            raise text
        return str(text)

    monkeypatch.setattr("builtins.input", answer)
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    return console, InterruptedJob(place, JobStatus.STOPPED)


def test_a_notebook_has_one_output_that_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    def display(bundle: dict[str, str], **how: object) -> Any:
        assert how == {"raw": True, "display_id": True}
        shown.append(bundle["text/plain"])
        return SimpleNamespace(update=lambda new, raw: shown.append(new["text/plain"]))

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    console = Console(file=io.StringIO(), force_jupyter=True)
    with panel.opened(console) as below:
        below.show("Starting …")
        below.show(panel.job_text(ScriptedJob(tmp_path, JobStatus.STOPPED).record(), "loss 0.5"))
        below.show(None)
    assert shown[0] == "Starting …"
    assert shown[1].startswith("Training for 0:00, 0:00 in all\nmetrics  loss 0.5")
    assert shown[2] == ""


def test_ctrl_c_stops_the_job_and_names_it_plainly(tmp_path: Path, activities: list[str]) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=40)
    job = InterruptedJob(tmp_path, JobStatus.STOPPED)
    with pytest.raises(KeyboardInterrupt):
        follow.run(job, lambda: None, console, show_logs=True, compiles=True)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "Ctrl-C: stopping process://scripted and all its processes; again kills them.\n" in text
    assert "process://scripted: Stopped. No process of it is left.\n" in text
