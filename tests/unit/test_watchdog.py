"""Which rank is taken to hang."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import time
from pathlib import Path

import pytest

from trcomp import progress
from trcomp.entrypoint.watchdog import Watchdog
from trcomp.progress import Progress


@pytest.fixture
def busy() -> int:
    """A process that lives, and ignores the signal for stacks as a rank in C code would."""
    return os.getpid()


def _silent(rank: int, pid: int, seconds: float, **more: object) -> Progress:
    line = Progress(rank, pid, steps=3, since=time.monotonic() - seconds)
    return dataclasses.replace(line, **more)  # type: ignore[arg-type]


def _stall(directory: Path, *lines: Progress) -> str | None:
    script = directory / "train.py"
    for line in lines:
        progress.write(directory, line)
        # As the rank's own handler would.
        progress.stacks_file(directory, line.rank).write_text(
            'Thread 0x1 (most recent call first):\n  File "x.py", line 1 in beat\n\n'
            f'Current thread 0x2 (most recent call first):\n  File "{script}", line 7 in f\n'
        )
    found = Watchdog(directory, 60, directory).stall(time.sleep)
    return None if found is None else found.text


@pytest.fixture(autouse=True)
def harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "STACKS_SIGNAL", 0)


def test_nobody_hangs_who_goes_on_or_has_not_begun(tmp_path: Path, busy: int) -> None:
    assert Watchdog(tmp_path, 60, tmp_path).stall(time.sleep) is None
    assert _stall(tmp_path, _silent(0, busy, 59), _silent(1, busy, 1)) is None


def test_the_rank_that_the_others_wait_for_is_named_with_its_line(
    tmp_path: Path, busy: int
) -> None:
    waits, waited_for = _silent(0, busy, 90, collectives=4), _silent(1, busy, 80, collectives=3)
    text = _stall(tmp_path, waits, waited_for)
    assert text == "Rank 1 has made no progress for 80 s, at train.py:7."


def test_a_rank_at_its_end_may_wait_and_says_why_another_hangs(tmp_path: Path, busy: int) -> None:
    assert _stall(tmp_path, _silent(0, busy, 900, ended=True)) is None
    text = _stall(tmp_path, _silent(0, busy, 900, ended=True), _silent(1, busy, 70))
    assert text is not None and "The script of rank 0 has ended" in text


def test_a_process_that_is_gone_does_not_hang(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert _stall(tmp_path, _silent(0, gone.pid, 900)) is None


def test_a_file_cut_short_is_no_rank(tmp_path: Path, busy: int) -> None:
    (tmp_path / "rank-0.progress").write_text('{"rank": 0, "pi')
    assert progress.read(tmp_path) == []


def test_when_a_rank_stopped_does_not_depend_on_how_long_its_stacks_take(
    tmp_path: Path, busy: int
) -> None:
    silent = _silent(0, busy, 80)
    progress.write(tmp_path, silent)
    # It never shows its stacks.
    found = Watchdog(tmp_path, 60, tmp_path).stall(time.sleep)
    assert found is not None
    assert found.time == silent.since + 60
