"""`trcomp top` of a job in SageMaker, against the stand-in: as it runs, as it ends, afterwards."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from trcomp import Job
from trcomp.backends.sagemaker_logs import GROUP
from trcomp.cli import main
from trcomp.testing import SageMaker

pytestmark = pytest.mark.e2e

_HANDLE = "sagemaker://watched"
_SCRIPT = """
import os, sys, time
for step in range(20):
    print(f"step {step}: loss {2 / (step + 1):.4f}", flush=True)
while not os.path.exists(sys.argv[-1]):
    time.sleep(0.05)
print("loss 0.05", flush=True)
"""


@pytest.fixture
def go(sagemaker: SageMaker, tmp_path: Path) -> Path:
    """The file that ends a job of two hosts, all of whose losses but the last are in its log."""
    go = tmp_path / "go"
    (tmp_path / "train.py").write_text(_SCRIPT)
    words = ["--instance-type", "ml.m5.large", "--instance-count", "2", "--role", sagemaker.role]
    words += ["--image-uri", "image", "--no-compiler", "--job-name", "watched", "--detach"]
    assert main(["run", str(tmp_path / "train.py"), *words, "--", str(go)]) == 0
    while sum("step 19:" in line for line in Job(_HANDLE).logs()) < 2:
        time.sleep(0.1)
    return go


class _Screen:
    """`trcomp top` on a terminal of 80 columns, and all that it has drawn."""

    def __init__(self) -> None:
        self._screen, terminal = pty.openpty()
        command = [sys.executable, "-m", "trcomp", "top", _HANDLE]
        environment = os.environ | {"COLUMNS": "80"}
        streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
        self.process = subprocess.Popen(command, env=environment, **streams)
        os.close(terminal)
        self._drawn = b""
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        # Once nobody writes any more there is an error instead of an end.
        with suppress(OSError):
            while more := os.read(self._screen, 1 << 16):
                with self._changed:
                    self._drawn += more
                    self._changed.notify()

    def wait_for(self, text: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: text.encode() in self._drawn, 60), self._drawn

    def close(self) -> tuple[int, str]:
        """Its exit code, once it has ended, and what it drew."""
        code = self.process.wait(60)
        self._reader.join()
        os.close(self._screen)
        return code, self._drawn.decode()


@contextmanager
def _watching() -> Iterator[_Screen]:
    screen = _Screen()
    try:
        yield screen
    finally:
        screen.process.kill()


def test_a_running_job_shows_its_state_cost_and_losses(
    go: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["top", _HANDLE]) == 0
    shown = capsys.readouterr().out
    assert f"{_HANDLE}  Training, " in shown
    assert "instances  2 x ml.m5.large" in shown and "cost  about $0.00, as of " in shown
    assert "come with its results, once it has ended" in shown
    assert "loss  0.1  █" in shown and "] step 19: loss 0.1" in shown
    assert main(["top", _HANDLE, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["status"], values["ranks"]) == ("Training", [])
    assert values["metrics"] == {"loss": 0.1}
    go.touch()
    assert Job(_HANDLE).wait() == "Completed"
    assert main(["top", _HANDLE]) == 0
    shown = capsys.readouterr().out
    assert f"{_HANDLE}  Completed, " in shown and " loss 0.05" in shown
    assert f"are with its results:\n`trcomp report {_HANDLE}`" in shown


@pytest.mark.slow
def test_on_a_terminal_it_goes_on_to_the_last_line_even_if_that_comes_late(
    go: Path, sagemaker: SageMaker
) -> None:
    with _watching() as screen:
        screen.wait_for("step 19: loss 0.1")
        go.touch()
        Job(_HANDLE).wait()
        sagemaker.calls.clear()
        while "GetLogEvents" not in sagemaker.calls:
            time.sleep(0.05)
        logs = sagemaker.client("logs")
        stream = logs.describe_log_streams(logGroupName=GROUP)["logStreams"][0]["logStreamName"]
        event = {"timestamp": int(time.time() * 1000), "message": "[rank 0] it was on its way"}
        logs.put_log_events(logGroupName=GROUP, logStreamName=stream, logEvents=[event])
        code, drawn = screen.close()
    assert code == 0
    assert "Completed, " in drawn and "it was on its way" in drawn
    # Nothing is cut at the terminal's edge.
    assert "…" not in drawn


def test_who_stops_watching_leaves_the_job_alone(go: Path) -> None:
    with _watching() as screen:
        screen.wait_for("step 19: loss 0.1")
        screen.process.send_signal(signal.SIGINT)
        code, drawn = screen.close()
    assert code == 130 and "Traceback" not in drawn
    assert Job(_HANDLE).status() == "Training"
    go.touch()
    Job(_HANDLE).wait()
