"""The demo as a newcomer runs it, with fewer steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trcomp import Estimator, TrainingCompilerConfig

EXAMPLE = Path(__file__).parents[2] / "examples" / "vit"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.runtime,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRCOMP_HOME", str(tmp_path))
    monkeypatch.setenv("GPU_NUM_DEVICES", "2")


@pytest.mark.parametrize("enabled", [True, False], ids=["xla", "eager"])
def test_the_demo_learns_and_shows_what_it_did(
    enabled: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted = Estimator(
        entry_point="train.py",
        source_dir=EXAMPLE,
        instance_type="local_process",
        instance_count=1,
        compiler_config=TrainingCompilerConfig(enabled=enabled),
        hyperparameters={"steps": 20, "batch-size": 8},
    )
    fitted.fit()
    shown = capsys.readouterr().out
    losses = [float(text) for text in re.findall(r"loss (\d+\.\d+)", shown)]
    assert len(losses) == 2
    assert losses[-1] < losses[0]
    rows = ["workers", "steps", "steady step time", "time to first step", "samples/s"]
    rows += ["model", "output", "report", "job"] + (["compiles"] if enabled else [])
    for row in rows:
        assert re.search(rf"^{re.escape(row)}  +\S", shown, re.M), row
    assert fitted.latest_training_job is not None
    totals = fitted.latest_training_job.report()["totals"]
    assert (totals["num_ranks"], totals["steps"]) == (2, 20)
    assert bool(totals.get("compiles")) is enabled
