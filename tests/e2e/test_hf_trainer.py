"""transformers' Trainer, unmodified: its numbers are those of plain torch, its graphs few."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.e2e import frameworks

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STEPS = {
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": "true",
}
CPU = {"use_cpu": "true"}
LOGGED = ("loss", "grad_norm", "learning_rate", "eval_loss", "eval_accuracy", "eval_samples")


def logged(state: dict[str, Any]) -> list[dict[str, float]]:
    """What Trainer logged, without its clocks."""
    log = [{k: entry[k] for k in LOGGED if k in entry} for entry in state["log_history"]]
    return [entry for entry in log if entry]


def check_equal(state: dict[str, Any], plain: dict[str, Any], tolerance: float = 1e-4) -> None:
    """Every logged number is that of plain torch."""
    ours, due = logged(state), logged(plain)
    assert len(ours) == len(due) > 4
    for got, wanted in zip(ours, due, strict=True):
        assert got == pytest.approx(wanted, abs=tolerance, rel=tolerance)


def test_bert_on_two_ranks_counts_each_sample_once_and_compiles_each_shape_once(
    tmp_path: Path,
) -> None:
    # 45 samples on two ranks are five batches of 4 each and one of 3; to evaluate they are two of
    # 8 each and one of 7.
    words = {
        **STEPS,
        "model": "bert",
        "layers": 1,
        "num_train": 45,
        "num_eval": 45,
        "num_train_epochs": 2,
        "eval_strategy": "epoch",
    }
    job, state, plain = frameworks.both("hf_trainer", 2, tmp_path, words, CPU)
    check_equal(state, plain)
    evaluations = [entry for entry in state["log_history"] if "eval_samples" in entry]
    assert [entry["eval_samples"] for entry in evaluations] == [45, 45]
    assert job.counts("early_syncs") == [0, 0]
    assert all(built <= 18 for built in job.counts("compiles"))
    (num_steps,) = set(job.counts("steps"))
    assert job.new_graphs(num_steps // 2) == []
    assert job.counts("fallbacks") == [{}, {}]


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    words = {**STEPS, "layers": 1, "dropout": 0.1, "num_train": 48, "max_steps": 8}
    words |= {"save_strategy": "steps", "save_steps": 4}
    whole = frameworks.train("hf_trainer", 2, tmp_path, words, "whole")
    words["resume_from_checkpoint"] = str(whole.output / "checkpoint-4")
    rest = frameworks.train("hf_trainer", 2, tmp_path, words, "rest")
    assert logged(frameworks.history(rest.output)) == logged(frameworks.history(whole.output))
    ours, due = (load_file(run.output / "model.safetensors") for run in (rest, whole))
    assert all(torch.equal(ours[name], due[name]) for name in due)


def test_accumulated_gradients_and_the_syncfree_optimizer(tmp_path: Path) -> None:
    words = {
        **STEPS,
        "model": "gpt2",
        "layers": 1,
        "num_train": 53,
        "num_train_epochs": 2,
        "gradient_accumulation_steps": 3,
        "optim": "adamw_torch_xla",
    }
    _, state, plain = frameworks.both(
        "hf_trainer", 2, tmp_path, words, {**CPU, "optim": "adamw_torch"}
    )
    check_equal(state, plain)


@pytest.mark.parametrize("precision", ["bf16", pytest.param("fp16", marks=pytest.mark.long)])
def test_mixed_precision(precision: str, tmp_path: Path) -> None:
    words = {**STEPS, "layers": 1, "num_train": 48, "max_steps": 8, precision: "true"}
    job, state, plain = frameworks.both("hf_trainer", 1, tmp_path, words, CPU)
    check_equal(state, plain, tolerance=2e-3)
    assert job.counts("early_syncs") == [0]
    assert job.counts("compiles")[0] <= 5


def test_a_compiled_model_gives_the_same(tmp_path: Path) -> None:
    words = {**STEPS, "layers": 1, "num_train": 48, "max_steps": 8, "torch_compile": "true"}
    plain = {**CPU, "torch_compile": "false"}
    job, state, due = frameworks.both("hf_trainer", 1, tmp_path, words, plain)
    check_equal(state, due)
    assert job.counts("early_syncs") == [0]
    assert job.new_graphs(5) == []


@pytest.mark.long
@pytest.mark.parametrize("model", ["bert", "vit", "gpt2"])
@pytest.mark.parametrize("devices", [1, 2])
def test_models(model: str, devices: int, tmp_path: Path) -> None:
    words = {
        **STEPS,
        "model": model,
        "num_train": 48,
        "num_eval": 13,
        "max_steps": 12,
        "eval_strategy": "steps",
        "eval_steps": 6,
    }
    job, state, plain = frameworks.both("hf_trainer", devices, tmp_path, words, CPU)
    check_equal(state, plain)
    assert job.counts("early_syncs") == [0] * devices
    assert job.counts("fallbacks") == [{}] * devices
