"""accelerate, unmodified: prepare, accumulate, clip, gather, reduce, save and load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.e2e import frameworks

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CPU = {"cpu": "true"}
CHECKS = Path(__file__).parent / "scripts" / "accelerate_checks.py"


@pytest.mark.parametrize("devices", [1, 2])
def test_accelerates_own_checks(devices: int, tmp_path: Path) -> None:
    job = frameworks.train(CHECKS, devices, tmp_path, {})
    assert job.counts("fallbacks") == [{}] * devices
    for rank in range(devices):
        failed = json.loads((job.output / f"{rank}.json").read_text())
        assert failed == {}


def test_accumulated_steps_and_gathered_metrics_on_two_ranks(tmp_path: Path) -> None:
    # 50 samples and 29: neither fills its last batch, nor do batches of two fill the last step.
    words = {"accumulate": 2}
    job, ours, plain = frameworks.both("accelerate", 2, tmp_path, words, CPU)
    assert len(ours) == len(plain) == 3
    for got, due in zip(ours, plain, strict=True):
        assert got["losses"] == pytest.approx(due["losses"], abs=1e-5)
        assert (got["samples"], got["accuracy"]) == (29, due["accuracy"])
    assert all(built <= 12 for built in job.counts("compiles"))
    (num_steps,) = set(job.counts("steps"))
    assert job.new_graphs(num_steps // 2) == []


def test_a_loaded_state_goes_on_as_if_never_saved(tmp_path: Path) -> None:
    words = {"dropout": 0.2, "epochs": 3}
    whole = frameworks.train("accelerate", 1, tmp_path, words, "whole")
    words["resume"] = str(whole.output / "epoch-1")
    rest = frameworks.train("accelerate", 1, tmp_path, words, "rest")
    assert frameworks.history(rest.output) == frameworks.history(whole.output)[2:]
    ours, due = (load_file(run.output / "model.safetensors") for run in (rest, whole))
    assert all(torch.equal(ours[name], due[name]) for name in due)


@pytest.mark.parametrize("precision", ["bf16", pytest.param("fp16", marks=pytest.mark.long)])
def test_mixed_precision(precision: str, tmp_path: Path) -> None:
    words = {"mixed_precision": precision, "epochs": 1}
    _, ours, plain = frameworks.both("accelerate", 1, tmp_path, words, CPU)
    assert ours[0]["losses"] == pytest.approx(plain[0]["losses"], abs=1e-2)
