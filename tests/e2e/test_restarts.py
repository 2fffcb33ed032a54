"""Workers that start anew within a job go on from its checkpoint, and end where others end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trcomp import Estimator, TrainingCompilerConfig, flags

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SCRIPTS = Path(__file__).parent / "scripts"


def _losses(place: Path, environment: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """The loss of each step of rank 0, as it was printed last, and all lines."""
    estimator = Estimator(
        "goes_on.py",
        SCRIPTS,
        compiler_config=TrainingCompilerConfig(),
        checkpoint_s3_uri=place / "checkpoints",
        environment={"GPU_NUM_DEVICES": "2", flags.GRACE_SECONDS.name: "2"} | environment,
    )
    estimator.fit(logs=False)
    job = estimator.latest_training_job
    assert job is not None
    lines = list(job.logs())
    steps = [re.fullmatch(r"\[rank 0\] step (\d) loss (.+)", line) for line in lines]
    return {found[1]: found[2] for found in steps if found}, lines


def test_a_restarted_job_ends_as_one_that_was_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(flags.HOME.name, str(tmp_path))
    whole, _ = _losses(tmp_path / "whole", {})
    killed, lines = _losses(tmp_path / "killed", {"die": "1", flags.MAX_RESTARTS.name: "1"})
    assert whole == killed
    assert len(whole) == 8
    assert any("was killed by SIGKILL" in line for line in lines)
    # What was trained before is not trained again.
    assert sum("step 4 loss" in line for line in lines) == 2
