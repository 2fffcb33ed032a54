"""The demo without XLA: the same script and workers on torch's own device."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trcomp import Estimator, TrainingCompilerConfig

EXAMPLE = Path(__file__).parents[2] / "examples" / "vit"

pytestmark = [pytest.mark.e2e, pytest.mark.runtime, pytest.mark.slow]


def test_the_demo_learns_without_xla_and_shows_what_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRCOMP_HOME", str(tmp_path))
    monkeypatch.setenv("GPU_NUM_DEVICES", "2")
    fitted = Estimator(
        entry_point="train.py",
        source_dir=EXAMPLE,
        instance_type="local_process",
        instance_count=1,
        compiler_config=TrainingCompilerConfig(enabled=False),
        hyperparameters={"steps": 20, "batch-size": 8},
    )
    fitted.fit()
    shown = capsys.readouterr().out
    losses = [float(text) for text in re.findall(r"loss (\d+\.\d+)", shown)]
    assert len(losses) == 2
    assert losses[-1] < losses[0]
    rows = ["workers", "steps", "steady step time", "time to first step", "samples/s"]
    for row in [*rows, "model", "output", "report", "job"]:
        assert re.search(rf"^{re.escape(row)}  +\S", shown, re.M), row
    assert fitted.latest_training_job is not None
    totals = fitted.latest_training_job.report()["totals"]
    assert (totals["num_ranks"], totals["steps"]) == (2, 20)
    assert not totals.get("compiles")
