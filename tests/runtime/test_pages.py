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
FROM_CUDA = "docs/from-cuda.md"
"""In a process of its own: there `cuda` is the device."""


@pytest.mark.parametrize("page", [page for page in PROGRAMS if page != FROM_CUDA])
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


def test_the_page_for_cuda_scripts_prints_what_it_says() -> None:
    program = f"from tests import pages as p; p.run(p.programs(need='torch')[{FROM_CUDA!r}], {{}})"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, flags.CUDA_TO_XLA.name: "1", "JAX_PLATFORMS": "cpu"},
        cwd=pages.ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr
