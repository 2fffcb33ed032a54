"""Lightning and a plain torchrun script, unmodified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e import frameworks
from tests.runtime.rank_scripts import found_by_ranks
from trcomp import flags

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def check_equal(ours: dict[str, Any], plain: dict[str, Any], tolerance: float = 1e-5) -> None:
    """Losses of each step, and what was logged."""
    assert ours.pop("losses") == pytest.approx(plain.pop("losses"), abs=tolerance)
    assert ours == pytest.approx(plain, abs=tolerance)


@pytest.mark.parametrize(
    ("accelerator", "devices"),
    [
        ("gpu", 2),
        pytest.param("auto", 2, marks=pytest.mark.long),
        pytest.param("auto", 1, marks=pytest.mark.long),
    ],
)
def test_each_graph_of_training_is_new_once_and_no_step_is_read(
    accelerator: str, devices: int, tmp_path: Path
) -> None:
    num_batches = 40
    words = {"accelerator": accelerator, "devices": devices, "epochs": 2}
    words |= {"num_train": 4 * num_batches * devices, "num_eval": 8 * devices}
    plain_words = {"accelerator": "cpu"}
    job, ours, plain = frameworks.both("lightning", devices, tmp_path, words, plain_words)
    check_equal(ours, plain)
    assert len(job.ranks) == devices
    # Before the epoch is the check of the validation; it and the first two steps are at most six.
    assert job.new_graphs(6, num_batches) == []
    # In the second epoch what is new is the comparison with the first one's best checkpoint.
    (last,) = set(job.counts("steps"))
    assert job.new_graphs(last - num_batches + 2, last - 2) == []
    # Validation and checkpoints read, however many steps there are; training does not, though it
    # logs a loss that is averaged over the ranks.
    assert all(count <= 20 for count in job.counts("early_syncs"))


def test_a_checkpoint_is_resumed_and_the_best_is_kept(tmp_path: Path) -> None:
    words = {"dropout": 0.2, "epochs": 3}
    whole = frameworks.train("lightning", 1, tmp_path, {**words, "epochs": 2}, "half")
    checkpoints = whole.output / "checkpoints"
    kept = sorted(path.name for path in checkpoints.iterdir())
    assert kept[-1] == "last.ckpt" and kept[0].startswith("epoch=")
    state = torch.load(checkpoints / "last.ckpt", weights_only=False, map_location="cpu")
    assert state["epoch"] == 1 and state["global_step"] == 24
    rest = frameworks.train(
        "lightning", 1, tmp_path, {**words, "resume": str(checkpoints / "last.ckpt")}, "rest"
    )
    assert len(frameworks.history(rest.output)["losses"]) == 12
    assert json.loads((rest.output / "history.json").read_text())["val_loss"] > 0


TOLD_TO_STOP = """
import json, os, signal, sys

sys.path.insert(0, {examples!r})
import lightning as L
from train import Classifier, loader


class Told(Classifier):
    def training_step(self, batch, batch_index):
        if batch_index == 3 and self.global_rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().training_step(batch, batch_index)


words = {{name: False for name in ("logger", "enable_progress_bar", "enable_checkpointing")}}
trainer = L.Trainer(accelerator="gpu", devices=2, max_epochs=2, **words)
try:
    trainer.fit(Told(), loader(96, 1, 4), loader(24, 2, 4))
except SystemExit as error:
    found = [type(error).__name__, trainer.global_step]
    print("FOUND " + json.dumps(found), flush=True)
"""


def test_all_ranks_stop_at_the_step_after_one_was_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(flags.CUDA_TO_XLA.name, "1")
    script = TOLD_TO_STOP.format(examples=str(frameworks.EXAMPLES / "lightning"))
    assert found_by_ranks(script, tmp_path, 2) == [["SIGTERMException", 4]] * 2


@pytest.mark.parametrize(
    ("accelerator", "precision"),
    [
        ("auto", "bf16-mixed"),
        pytest.param("auto", "bf16-true", marks=pytest.mark.long),
        pytest.param("gpu", "16-mixed", marks=pytest.mark.long),
        pytest.param("gpu", "bf16-mixed", marks=pytest.mark.long),
    ],
)
def test_half_precision(accelerator: str, precision: str, tmp_path: Path) -> None:
    words = {"accelerator": accelerator, "precision": precision, "epochs": 1}
    plain = {"accelerator": "cpu", "precision": "bf16-mixed"}
    job, ours, due = frameworks.both("lightning", 1, tmp_path, words, plain)
    check_equal(ours, due, tolerance=2e-2)
    assert job.counts("fallbacks") == [{}]


def test_a_script_for_torchrun_and_gpus(tmp_path: Path) -> None:
    job, ours, plain = frameworks.both("torchrun", 2, tmp_path, {})
    check_equal(ours, plain)
    assert job.counts("compiles") == [job.counts("compiles")[0]] * 2
    assert job.counts("compiles")[0] <= 5
    (num_steps,) = set(job.counts("steps"))
    assert job.new_graphs(2, num_steps) == []
    ours, due = (
        torch.load(place / "model.pt", map_location="cpu")
        for place in (job.output, tmp_path / "plain")
    )
    assert ours.keys() == due.keys()
    for name in due:
        torch.testing.assert_close(ours[name], due[name])
