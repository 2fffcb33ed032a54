"""The Python of README and docs that asks for a job, with a job to ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import pages
from trcomp import Estimator, TrainingCompilerConfig
from trcomp.testing import SageMaker

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("page", PROGRAMS := pages.programs(need="job"))
def test_a_job_answers_as_the_page_asks(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sagemaker: SageMaker
) -> None:
    monkeypatch.setenv("TRCOMP_HOME", str(tmp_path / "home"))
    script = tmp_path / "train.py"
    script.write_text("import torch\nprint('trained')\n")
    monkeypatch.chdir(tmp_path)
    words: dict[str, Any] = {"compiler_config": TrainingCompilerConfig(enabled=False)}
    if any("sagemaker://" in block.text for block in PROGRAMS[page]):
        words |= {"role": sagemaker.role, "image_uri": "i", "instance_type": "ml.m5.large"}
    Estimator(script, **words).fit(job_name="vit", wait=False)
    pages.run(PROGRAMS[page], {})
