"""The fault matrix: `make faults` runs every row and writes docs/faults.md; `make test` a few."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.fault_rows import ROWS
from tests.e2e.fault_scene import Row, Scene, Seen
from tests.pages import ROOT
from trcomp import flags

pytestmark = pytest.mark.e2e

PAGE = ROOT / "docs" / "faults.md"
_BEGIN, _END = "<!-- begin faults -->\n", "<!-- end faults -->"


@pytest.fixture(scope="module")
def seen() -> dict[str, Seen]:
    """What became of each row that was run, and ended as it must."""
    return {}


def _line(row: Row, seen: Seen) -> str:
    text = re.sub(r"/\S*/", "…/", seen.text).replace("|", r"\|")
    text = f"`{text}`" if text else ""
    more = f"; {seen.more}" if seen.more else ""
    cells = (row.fault + more, seen.outcome, str(seen.exit_code), text, f"{seen.seconds:.1f}")
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.fault, marks=[] if row.in_ci else pytest.mark.faults)
        for row in ROWS
    ],
)
def test_a_fault(
    row: Row, seen: dict[str, Seen], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path)
    monkeypatch.setenv(flags.HOME.name, str(tmp_path / "home"))
    try:
        found = scene.run(row)
    except PermissionError as error:
        pytest.skip(str(error))
    assert (found.outcome, found.exit_code) == (row.outcome, row.exit_code), found
    assert re.search(row.text, found.text), found
    assert found.left == ()
    assert found.lost == ()
    assert found.seconds < row.most_seconds
    seen[row.fault] = found


def test_the_page_has_every_row(seen: dict[str, Seen]) -> None:
    """It is made anew where all of them have run."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    table, _, rest = rest.partition(_END)
    if len(seen) == len(ROWS):
        lines = [
            "| fault | the job | exit code | first line of the failure | seconds |",
            "|---|---|---|---|---|",
            *(_line(row, seen[row.fault]) for row in ROWS),
        ]
        table = "".join(f"{line}\n" for line in lines)
        PAGE.write_text(f"{head}{_BEGIN}{table}{_END}{rest}", encoding="utf-8")
    assert [row.fault for row in ROWS if f"| {row.fault}" not in table] == []
