"""A process that hands a job's measurements on, as they come: TensorBoard's events, MLflow.

    metrics.jsonl's lines ──standard input──> output/data/tensorboard, if tensorboard is installed
                                              MLflow's run, if it is too and has a tracking server

It ends with its input. What goes wrong here is told once and costs no more than what it is of.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from trcomp import flags
from trcomp.errors import in_one_line

_TRACKING = "MLFLOW_TRACKING_URI"
_MLFLOW_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""A server that does not answer is not waited for as long as MLflow would."""
_NO_MEASUREMENTS = {"time", "rank", "step", "steps", "samples", "metrics"}


class _Sink(Protocol):
    def write(self, line: Mapping[str, Any], values: Mapping[str, float]) -> None:
        """Hand on the values of one line."""

    def close(self, end: str) -> None:
        """There are no more; how the job ended, in MLflow's words."""


def wanted(environ: Mapping[str, str]) -> bool:
    """Whether there is anything to hand measurements to."""
    return any(_makers(environ))


def _makers(environ: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    if importlib.util.find_spec("tensorboard") is not None:
        yield "TensorBoard", _TensorBoard
    if environ.get(_TRACKING) and importlib.util.find_spec("mlflow") is not None:
        yield "MLflow", _MLflow


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(folder), flush_secs=5)

    def write(self, line: Mapping[str, Any], values: Mapping[str, float]) -> None:
        summary = self._summary(
            value=[self._summary.Value(tag=k, simple_value=v) for k, v in values.items()]
        )
        event = self._event(wall_time=line["time"], step=line["step"], summary=summary)
        self._writer.add_event(event)

    def close(self, end: str) -> None:
        self._writer.close()


class _MLflow:
    def __init__(self, folder: Path) -> None:
        for name, value in _MLFLOW_DEFAULTS.items():
            os.environ.setdefault(name, value)
        import mlflow
        from mlflow.entities import Metric

        self._metric = Metric
        self._mlflow = mlflow
        # MLFLOW_RUN_ID and MLFLOW_EXPERIMENT_NAME are heeded by it.
        self._run = mlflow.start_run(run_name=flags.JOB_NAME.get() or None)
        self._client = mlflow.MlflowClient()

    def write(self, line: Mapping[str, Any], values: Mapping[str, float]) -> None:
        at = int(line["time"] * 1000)
        metrics = [
            self._metric(re.sub(r"[^\w\-./ ]", "_", name), value, at, line["step"])
            for name, value in values.items()
        ]
        self._client.log_batch(self._run.info.run_id, metrics=metrics)

    def close(self, end: str) -> None:
        self._mlflow.end_run(end)


class _Guarded:
    """A sink whose failures are told once, and then it is none."""

    def __init__(self, name: str, make: Any, folder: Path) -> None:
        self._name = name
        self._sink: _Sink | None = None
        self._do(lambda: setattr(self, "_sink", make(folder)))

    def write(self, line: Mapping[str, Any], values: Mapping[str, float]) -> None:
        if (sink := self._sink) is not None:
            self._do(lambda: sink.write(line, values))

    def close(self, end: str) -> None:
        if (sink := self._sink) is not None:
            self._do(lambda: sink.close(end))

    def _do(self, act: Any) -> None:
        try:
            act()
        except Exception as error:
            self._sink = None
            text = in_one_line(error)[:300]
            print(f"[trcomp] No measurements go to {self._name}: {text}", flush=True)


def values_of(line: Mapping[str, Any]) -> dict[str, float]:
    """What of a line is measured, by the names that TensorBoard and MLflow show."""
    own = {f"trcomp/{k}": float(v) for k, v in line.items() if k not in _NO_MEASUREMENTS}
    return own | {name: float(value) for name, value in line.get("metrics", {}).items()}


def main() -> None:
    """Hand on lines of standard input, until it ends."""
    for number in (signal.SIGTERM, signal.SIGINT):
        # They are for the worker: this ends with it, having handed on its last lines.
        signal.signal(number, signal.SIG_IGN)
    folder = Path(sys.argv[1])
    sinks = [_Guarded(name, make, folder) for name, make in _makers(os.environ)]
    end = "KILLED"
    for text in sys.stdin:
        try:
            line = json.loads(text)
        except ValueError:
            continue  # The worker died while it wrote.
        if "end" in line:
            # Not the input's end: processes that the script forked hold the pipe open, too.
            end = line["end"]
            break
        for sink in sinks:
            sink.write(line, values_of(line))
    for sink in sinks:
        sink.close(end)


if __name__ == "__main__":
    main()
