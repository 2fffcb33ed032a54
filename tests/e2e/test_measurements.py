"""A job while it runs and what it leaves: `trcomp top`, metrics.jsonl, traces, the page's link."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from trcomp import Job
from trcomp.cli import main

pytestmark = pytest.mark.e2e

_SCRIPT = """
import os, sys, time
import torch
import trcomp.runtime as rt

weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)

def train(steps):
    for batch in rt.DeviceLoader([torch.ones(4, 3)] * steps):
        optimizer.zero_grad()
        loss = (batch @ weight).square().mean()
        loss.backward()
        optimizer.step()
        # Some steps in one measurement, others in the next.
        time.sleep(0.02)
        print(f"loss {loss.item():.4f}", flush=True)

train(20)
while not os.path.exists(sys.argv[-1]):
    time.sleep(0.05)
train(10)
"""


def _lines(home: Path, name: str) -> list[dict[str, Any]]:
    path = home / f"jobs/watched/hosts/algo-1/ml/output/data/trcomp/{name}"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.slow
def test_a_job_is_watched_measured_and_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("TRCOMP_HOME", str(home))
    (tmp_path / "train.py").write_text(_SCRIPT)
    go = tmp_path / "go"
    words = ["--job-name", "watched", "--devices", "2", "--no-compiler", "--detach"]
    words += [
        "--profile-steps",
        "22-24",
        "--set",
        'metric_definitions=[{"Name": "l", "Regex": "loss ([0-9.]+)"}]',
    ]
    assert main(["run", str(tmp_path / "train.py"), *words, "--", "--steps", "30", str(go)]) == 0
    job = Job("process://watched")
    try:
        while len({one.rank for one in job.live() if one.step == 20}) < 2:
            assert not job.status().ended, list(job.logs())
            time.sleep(0.05)
        capsys.readouterr()
        assert main(["top", "watched"]) == 0
        shown = capsys.readouterr().out
        assert main(["top", "watched", "--json"]) == 0
        values = json.loads(capsys.readouterr().out)
        screen, terminal = pty.openpty()
        command = [sys.executable, "-m", "trcomp", "top", "watched"]
        watching = subprocess.Popen(command, stdout=terminal, stderr=terminal)
        os.close(terminal)
        drawn = os.read(screen, 1 << 16)
    finally:
        go.touch()
    job.wait()
    # On a terminal it goes on until the job has ended. Its other end then has nothing to read.
    with suppress(OSError):
        while more := os.read(screen, 1 << 16):
            drawn += more
    os.close(screen)
    assert watching.wait(60) == 0
    assert b"Completed" in drawn and b"step 30" in drawn
    assert "process://watched  Training" in shown
    assert "step 20" in shown and "steps/s" in shown and " left" in shown
    assert "l  " in shown and "▁" in shown and "] loss " in shown
    assert [rank["step"] for rank in values["ranks"]] == [20, 20]
    for name in ("metrics.jsonl", "metrics-rank-1.jsonl"):
        lines = _lines(home, name)
        assert sum(line["steps"] for line in lines) == lines[-1]["step"] == 30
        assert all(line["memory_bytes"] > 1e6 for line in lines)
    assert any("l" in line["metrics"] for line in _lines(home, "metrics.jsonl"))
    assert main(["profile", "watched", "--to", str(tmp_path / "traces")]) == 0
    traces = {path.name for path in (tmp_path / "traces").iterdir()}
    assert traces == {"rank-0.trace.json.gz", "rank-1.trace.json.gz"}
    assert 'hosts/algo-1/ml/output/data/profile/rank-1.trace.json.gz">rank 1, steps 22 to 24' in (
        job.page()
    )
    assert main(["profile", "watched", "--debug"]) == 64
