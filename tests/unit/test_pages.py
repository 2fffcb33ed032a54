"""README and docs: their Python runs, their commands, files and links exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests import pages
from trcomp import Estimator
from trcomp.cli import cli
from trcomp.follow import report_rows

ROOT = pages.ROOT
PROGRAMS = pages.programs(need=None)
COMMANDS = [
    pytest.param(words, id=f"{page.name}: {line.strip()[:60]}")
    for page in pages.PAGES
    for line, words in pages.commands(page)
]
TARGETS = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#([^)\s]+))?\)")


@pytest.mark.parametrize("page", PROGRAMS)
def test_the_launchers_python_runs(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(estimator: Estimator, *args: Any, **words: Any) -> None:
        estimator.plan()

    # What a job does is the end-to-end tests' business: here it is planned.
    monkeypatch.setattr(Estimator, "fit", fit)
    monkeypatch.chdir(ROOT)
    pages.run(PROGRAMS[page], {})


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_excerpts_are_lines_of_their_files_in_order(page: Path) -> None:
    for block in pages.blocks(page):
        if block.excerpt is not None:
            lines = iter((ROOT / block.excerpt).read_text().splitlines())
            missing = [line for line in block.text.splitlines() if line and line not in lines]
            assert missing == [], f"{block.page}:{block.line}"


@pytest.mark.parametrize("words", COMMANDS)
def test_commands_can_be_typed_as_they_are_shown(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TRCOMP_HOME", str(tmp_path))
    program, *arguments = words
    if program == "trcomp":
        name, *rest = arguments
        planned = [word for word in rest if word not in {"--detach", "--quiet"}]
        cli.commands[name].make_context(name, rest)  # empties the list
        if name in {"run", "plan"}:
            with cli.commands["plan"].make_context("plan", planned) as context:
                cli.commands["plan"].invoke(context)
    elif program == "make":
        assert arguments[0] in TARGETS
    else:
        assert words == ["source", ".venv/bin/activate"]


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    broken = [
        target
        for target, _ in _LINK.findall(page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []


def test_the_demo_shown_ends_with_the_rows_that_a_job_ends_with() -> None:
    shown = next(
        block.text for block in pages.blocks(ROOT / "README.md") if "Preparing" in block.text
    )
    labels = re.findall(r"^(\w.*?)  +\S", shown.partition("\n\n")[2], re.MULTILINE)
    keys = ["num_ranks", "steps", "compiles", "steady_step_seconds", "first_step_seconds"]
    totals = dict.fromkeys([*keys, "samples_per_second", "input_wait_seconds"], 1)
    rows = [label for label, _ in report_rows(totals)]
    assert labels == [*rows, "model", "output", "report", "job"]
