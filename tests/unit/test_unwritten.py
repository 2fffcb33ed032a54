"""A file that training can do without is lost with a word, and only one."""

from __future__ import annotations

from pathlib import Path

import pytest

from trcomp import unwritten


def test_what_cannot_be_written_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(unwritten, "_told", set())
    for what in ("metrics.jsonl", "metrics.jsonl", "The report rank-0.json"):
        with unwritten.told(what), Path("/dev/full").open("w", buffering=1) as file:
            file.write("lost\n")
    lines = capsys.readouterr().err.splitlines()
    why = "cannot be written: [Errno 28] No space left on device. Training goes on."
    assert lines == [f"[trcomp] metrics.jsonl {why}", f"[trcomp] The report rank-0.json {why}"]


def test_other_errors_are_raised() -> None:
    with pytest.raises(ValueError), unwritten.told("metrics.jsonl"):
        raise ValueError
