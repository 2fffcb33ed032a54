"""The Python of README and docs runs, and prints what the pages say: the pages that use torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import trcomp.compat
from tests import pages
from trcomp import flags
from trcomp.runtime.metrics import counters

pytestmark = pytest.mark.runtime

PROGRAMS = pages.programs(need="torch")
ALONE: dict[str, dict[str, str]] = {
    "docs/from-cuda.md": {flags.CUDA_TO_XLA.name: "1"},
    "docs/hugging-face.md": {},
    "docs/lightning.md": {},
}
"""Pages in a process of their own, and its variables: frameworks ask once what there is."""


@pytest.mark.parametrize("page", [page for page in PROGRAMS if page not in ALONE])
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


@pytest.mark.parametrize("page", ALONE)
def test_a_page_that_needs_its_own_process_prints_what_it_says(page: str, tmp_path: Path) -> None:
    program = f"from tests import pages as p; p.run(p.programs(need='torch')[{page!r}], {{}})"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(pages.ROOT), **ALONE[page]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr
