"""What `trcomp bench` asks of a worker: models compiled as they are moved, an end after N steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.rank_scripts import start_ranks, wait_for

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

TRAIN = """
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(8, 2)

        def forward(self, inputs):
            return self.head(inputs.relu())

    layers = (torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.BatchNorm1d(8), Model())
    model = torch.nn.Sequential(*layers).to(device)
    other = torch.nn.Linear(2, 2).to(device)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other)]
    for step in range(1000):
        print("step", step, flush=True)
        other(model(torch.ones(4, 8).to(device))).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
"""
BARRIERS = """
    import torch
    import trcomp.runtime as rt

    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for batch in rt.DeviceLoader([torch.ones(2)] * 6):
        for part in batch:
            (weight * part).sum().backward()
            optimizer.step()
"""


def report_of(script: str, folder: Path, **environ: str) -> dict[str, Any]:
    environ |= {"TRCOMP_REPORT_DIR": str(folder / "reports"), "TRCOMP_CUDA_TO_XLA": "1"}
    (ended,) = wait_for(start_ranks(script, folder, 1, environ))
    assert ended.code == 0, ended.text
    found: dict[str, Any] = json.loads((folder / "reports" / "rank-0.json").read_text())
    return found | {"printed": ended.text.count("step ")}


def test_models_that_are_moved_are_compiled_and_record_less(tmp_path: Path) -> None:
    found = {}
    for form, compiled in {"lazy": "0", "compiled": "1"}.items():
        folder = tmp_path / form
        folder.mkdir()
        environ = {"TRCOMP_STEPS": "8", "TRCOMP_COMPILE_MODELS": compiled}
        found[form] = report_of(TRAIN, folder, **environ)
    lazy, compiled = found["lazy"], found["compiled"]
    assert (lazy["compiled_models"], compiled["compiled_models"]) == (0, 2)
    assert compiled["recorded_nodes"] < lazy["recorded_nodes"]
    assert lazy["steps"] == compiled["steps"] == 8


def test_without_xla_a_step_is_one_of_the_first_optimizers(tmp_path: Path) -> None:
    found = report_of(TRAIN, tmp_path, TRCOMP_ENABLED="0", TRCOMP_STEPS="5")
    assert (found["steps"], found["printed"]) == (5, 5)
    assert found["steady_step_seconds"] > 0


def test_without_xla_a_scripts_own_barriers_are_its_steps(tmp_path: Path) -> None:
    assert report_of(BARRIERS, tmp_path, TRCOMP_ENABLED="0")["steps"] == 6
