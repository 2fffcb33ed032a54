"""What a script's last run used first is read ahead in the next, and in no other process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trcomp import flags
from trcomp.env.executables import STARTS
from trcomp.runtime import head_start

pytestmark = pytest.mark.runtime

SCRIPT = """
import torch
import trcomp.runtime as rt
from trcomp.runtime import head_start, persistent
persistent._WORTH_SECONDS = 0
ahead = len(head_start._Start.reading)
x = torch.full((3, 5), 2.0, device="xla")
print("value", (x @ torch.ones(5, 2, device="xla")).sum().item())
counts = rt.metrics()
print("ahead", ahead, "compiled", counts["compiles"], "loaded", counts["loads"])
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Another run of the script; the names of the files that it reads ahead."""
    script = tmp_path / "train.py"
    script.write_text("pass")
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv(flags.WORKER.name, "1")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(os, "register_at_fork", lambda **hooks: None)
    monkeypatch.setattr(head_start._Start, "names", ())

    def again() -> list[str]:
        monkeypatch.setattr(head_start._Start, "names", ())
        monkeypatch.setattr(head_start._Start, "reading", {})
        head_start.begin(tmp_path, lambda path: f"read {path.name}")
        return sorted(path.name for path in head_start._Start.reading)

    return again


def test_a_worker_reads_ahead_what_its_script_used_before(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environ = os.environ | {flags.CACHE.name: str(tmp_path / "cache"), flags.WORKER.name: "1"}
    environ |= {"RANK": "0", "WORLD_SIZE": "1"}
    command = [sys.executable, "-W", "error", str(script)]
    first, second = (
        subprocess.run(command, env=environ, check=True, text=True, stdout=subprocess.PIPE).stdout
        for _ in range(2)
    )
    assert first == "value 60.0\nahead 0 compiled 1 loaded 0\n"
    assert second == "value 60.0\nahead 1 compiled 0 loaded 1\n"


def test_what_was_read_ahead_is_handed_over_once(
    run: Callable[[], list[str]], tmp_path: Path
) -> None:
    assert run() == []
    head_start.note(tmp_path, tmp_path / "kind" / "graph")
    assert run() == ["graph"]
    assert head_start.taken(tmp_path / "kind" / "graph") == "read graph"
    assert head_start.taken(tmp_path / "kind" / "graph") is None


def test_a_run_that_uses_none_leaves_none(run: Callable[[], list[str]], tmp_path: Path) -> None:
    head_start.note(tmp_path, tmp_path / "kind" / "graph")
    assert run() == ["graph"]
    assert run() == []


def test_the_first_few_are_noted(run: Callable[[], list[str]], tmp_path: Path) -> None:
    for name in "abcdef":
        head_start.note(tmp_path, tmp_path / "kind" / name)
    assert run() == ["a", "b", "c", "d"]


@pytest.mark.parametrize("name", ["XLA_FLAGS", "CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS"])
def test_a_script_that_chose_how_the_device_opens_opens_it_itself(
    run: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with monkeypatch.context() as later:
        later.setenv(name, "--changed")
        head_start.note(tmp_path, tmp_path / "kind" / "graph")
    assert run() == []


def test_another_script_and_several_ranks_have_no_head_start(
    run: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head_start.note(tmp_path, tmp_path / "kind" / "graph")
    with monkeypatch.context() as several:
        several.setenv("WORLD_SIZE", "2")
        several.setenv("LOCAL_WORLD_SIZE", "2")
        assert run() == []
    (tmp_path / "train.py").write_text("print()")
    assert run() == []


def test_a_child_of_the_worker_notes_nothing(
    run: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_start._Start, "process", os.getpid() + 1)
    head_start.note(tmp_path, tmp_path / "kind" / "graph")
    assert not (tmp_path / STARTS).exists()


@pytest.mark.parametrize("name", ["/passwd", "//passwd", "../x", "a/..", "a/b/c", "a", "a\0/b", ""])
def test_a_note_that_leads_elsewhere_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    place = tmp_path / "note"
    monkeypatch.setattr(head_start, "_note_in", lambda root: place)
    monkeypatch.setattr(head_start, "ThreadPoolExecutor", lambda *args, **words: pytest.fail(name))
    place.write_text(f"{head_start._settings()}\n{name}\n")
    head_start.begin(tmp_path, lambda path: None)
