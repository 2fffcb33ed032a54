"""The Python of README and docs runs, and prints what the pages say: the pages that use torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import trcomp.compat
from tests import pages
from trcomp.runtime.metrics import counters

pytestmark = pytest.mark.runtime

PROGRAMS = pages.programs(need="torch")


@pytest.mark.parametrize("page", PROGRAMS)
def test_the_pages_python_prints_what_they_say(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("TRCOMP_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(pages.ROOT / "examples")
    trcomp.compat.install()
    torch.manual_seed(0)
    counters.clear()
    names = {
        str(home): "/home/you/.local/share/trcomp",
        str(tmp_path): "/home/you/trcomp",
        sys.executable: "python",
    }
    pages.run(PROGRAMS[page], names)
