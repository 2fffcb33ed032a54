"""Measurements on their way to TensorBoard and MLflow, recorded by stand-ins of both.

tests/interop/test_metric_sinks.py does it with the real ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_TENSORBOARD = {
    "__init__": "",
    "compat/proto/event_pb2": "Event = dict",
    "compat/proto/summary_pb2": """
class Summary(dict):
    Value = dict
""",
    "summary/writer/event_file_writer": """
class EventFileWriter:
    def __init__(self, folder, flush_secs):
        self.file = open(folder + "/events", "w")

    def add_event(self, event):
        print(event["step"], [(v["tag"], v["simple_value"]) for v in event["summary"]["value"]],
              file=self.file)

    def close(self):
        self.file.close()
""",
}
_MLFLOW = {
    "__init__": """
import os
from types import SimpleNamespace

def _note(*words):
    with open(os.environ["NOTES"], "a") as file:
        print(*words, file=file)

def start_run(run_name):
    if "refused" in os.environ["MLFLOW_TRACKING_URI"]:
        raise ConnectionError("no answer from " + os.environ["MLFLOW_TRACKING_URI"])
    _note("run", run_name)
    return SimpleNamespace(info=SimpleNamespace(run_id="7"))

class MlflowClient:
    def log_batch(self, run_id, metrics):
        _note(run_id, metrics)

def end_run(status):
    _note(status)
""",
    "entities": "Metric = lambda *words: words",
}
_LINES = [
    {"time": 1.5, "rank": 0, "step": 10, "steps": 10, "step_seconds": 0.25, "metrics": {"loss": 2}},
    {"time": 2.5, "rank": 0, "step": 20, "steps": 10, "metrics": {"top@1": 0.5}},
]


def _hand_on(folder: Path, *lines: str, uri: str) -> str:
    for package, modules in (("tensorboard", _TENSORBOARD), ("mlflow", _MLFLOW)):
        for name, text in modules.items():
            path = folder / "site" / package / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    environ = os.environ | {"PYTHONPATH": str(folder / "site"), "MLFLOW_TRACKING_URI": uri}
    environ |= {"TRCOMP_JOB_NAME": "vit", "NOTES": str(folder / "notes")}
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "trcomp.metric_sinks", str(folder / "events")],
        input="\n".join(lines),
        env=environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ended.stderr == ""
    return ended.stdout


def test_each_line_reaches_both_and_the_jobs_end_mlflow(tmp_path: Path) -> None:
    lines = [json.dumps(line) for line in [*_LINES, {"end": "FINISHED"}]]
    assert _hand_on(tmp_path, *lines, uri="http://tracking") == ""
    assert (tmp_path / "events/events").read_text().splitlines() == [
        "10 [('trcomp/step_seconds', 0.25), ('loss', 2.0)]",
        "20 [('top@1', 0.5)]",
    ]
    assert (tmp_path / "notes").read_text().splitlines() == [
        "run vit",
        "7 [('trcomp/step_seconds', 0.25, 1500, 10), ('loss', 2.0, 1500, 10)]",
        "7 [('top_1', 0.5, 2500, 20)]",
        "FINISHED",
    ]


def test_a_server_that_refuses_is_told_of_once_and_a_worker_that_died_is_none_that_finished(
    tmp_path: Path,
) -> None:
    lines = [json.dumps(line) for line in _LINES]
    told = _hand_on(tmp_path, *lines, uri="http://me:secret@refused")
    assert told == (
        "[trcomp] No measurements go to MLflow: ConnectionError: "
        "no answer from http://***@refused\n"
    )
    assert len((tmp_path / "events/events").read_text().splitlines()) == 2
    _hand_on(tmp_path, lines[0], '{"half', uri="http://tracking")
    assert (tmp_path / "notes").read_text().endswith("KILLED\n")
