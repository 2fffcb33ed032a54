"""The demo as a newcomer runs it: two ranks train a Vision Transformer, and the result is there."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

from trcomp import Job

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

DEMO = Path(__file__).parents[2] / "examples" / "vit"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the demo shows; its job stays in TRCOMP_HOME."""
    home = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRCOMP_HOME", str(home))
        patch.setenv("GPU_NUM_DEVICES", "2")
        ended = subprocess.run(
            [sys.executable, str(DEMO / "launch.py")],
            env=dict(os.environ),
            cwd=home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=115,
        )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


@pytest.fixture
def job(shown: str, monkeypatch: pytest.MonkeyPatch) -> Job:
    handle = re.search(r"process://[\w-]+", shown)
    path = re.search(r"^report +(/.*)/jobs/", shown, re.MULTILINE)
    assert handle is not None and path is not None
    monkeypatch.setenv("TRCOMP_HOME", path[1])
    return Job.attach(handle[0])


def test_it_shows_the_stages_the_lines_by_rank_and_the_result(shown: str) -> None:
    stages = re.findall(r"^ +[\d.]+ s +(\w+)$", shown, re.MULTILINE)
    assert stages == ["Preparing", "Starting", "Training", "Uploading", "Completed"]
    for word in ("steps", "compiles", "steady step time", "time to first step", "model", "report"):
        assert re.search(rf"^{word} ", shown, re.MULTILINE), word


def test_the_loss_falls_and_the_master_alone_says_so(shown: str) -> None:
    lines = re.findall(r"^(\[rank \d+\]) step (\d+): loss ([\d.]+)$", shown, re.MULTILINE)
    assert [(rank, int(step)) for rank, step, _ in lines] == [
        ("[rank 0]", step) for step in (10, 20, 30, 40, 50)
    ]
    losses = [float(loss) for *_, loss in lines]
    assert losses[-1] < losses[0] / 2


def test_nothing_is_compiled_twice_and_nothing_falls_back(job: Job) -> None:
    workers = job.report()["ranks"]
    assert [worker["rank"] for worker in workers] == [0, 1]
    for worker in workers:
        assert worker["steps"] == 50
        assert worker["compiles"] <= 2
        assert worker["early_syncs"] == 0
        assert worker["fallbacks"] == {}


def test_the_model_can_be_loaded_without_a_device(shown: str) -> None:
    path = re.search(r"^model +file://(.*)$", shown, re.MULTILINE)
    assert path is not None
    with tarfile.open(path[1]) as archive:
        member = archive.extractfile("model.pt")
        assert member is not None
        state = torch.load(io.BytesIO(member.read()), weights_only=True)
    assert state["classifier.weight"].shape == (8, 128)
    assert {tensor.device.type for tensor in state.values()} == {"cpu"}
