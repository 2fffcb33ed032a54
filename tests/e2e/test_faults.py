"""The fault matrix: `make faults` runs every row and writes docs/faults.md; `make test` a few."""

from __future__ import annotations

import re
from collections.abc import Iterator
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
def seen() -> Iterator[dict[str, Seen]]:
    """What became of each row that was run as it must; all of them make the page."""
    found: dict[str, Seen] = {}
    yield found
    if len(found) == len(ROWS):
        head, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
        table = "\n".join(
            [
                "| fault | the job | exit code | first line of the failure | seconds |",
                "|---|---|---|---|---|",
                *(_line(row, found[row.fault]) for row in ROWS),
            ]
        )
        PAGE.write_text(f"{head}{_BEGIN}{table}\n{_END}{rest.partition(_END)[2]}", encoding="utf-8")


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


def test_the_page_has_every_row() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [row.fault for row in ROWS if f"| {row.fault}" not in text] == []
