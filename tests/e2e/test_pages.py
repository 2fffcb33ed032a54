"""The Python of README and docs that asks for a job, with a job to ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import pages
from trcomp import Estimator, TrainingCompilerConfig

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("page", PROGRAMS := pages.programs(need="job"))
def test_a_job_answers_as_the_page_asks(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRCOMP_HOME", str(tmp_path / "home"))
    script = tmp_path / "train.py"
    script.write_text("import torch\nprint('trained')\n")
    plain = TrainingCompilerConfig(enabled=False)
    Estimator(script, compiler_config=plain).fit(job_name="vit", wait=False)
    pages.run(PROGRAMS[page], {})
