"""Measurements in TensorBoard's own files and MLflow's own store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorboard", reason="NOT TESTED against tensorboard: it is not installed")
mlflow = pytest.importorskip("mlflow", reason="NOT TESTED against mlflow: it is not installed")


def test_what_is_measured_is_read_back(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    line = {"time": 1.5, "rank": 0, "step": 10, "step_seconds": 0.25, "metrics": {"loss": 2}}
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "trcomp.metric_sinks", str(tmp_path / "events")],
        input="\n".join(map(json.dumps, [line, line | {"step": 20}, {"end": "FINISHED"}])),
        env=os.environ | {"MLFLOW_TRACKING_URI": uri, "TRCOMP_JOB_NAME": "vit"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == "", ended.stderr
    (file,) = (tmp_path / "events").iterdir()
    found = {
        (event.step, value.tag)
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
    }
    assert found == {(s, tag) for s in (10, 20) for tag in ("loss", "trcomp/step_seconds")}
    (run,) = mlflow.MlflowClient(uri).search_runs(["0"])
    assert run.info.run_name == "vit" and run.info.status == "FINISHED"
    assert run.data.metrics == {"loss": 2.0, "trcomp/step_seconds": 0.25}
