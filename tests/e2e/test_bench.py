"""`trcomp bench`: a script in three forms, as jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trcomp.cli import main

pytestmark = [pytest.mark.e2e, pytest.mark.runtime, pytest.mark.slow]

SCRIPT = """
import argparse
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=8)
parser.add_argument("--only")
args = parser.parse_args()
device = torch_xla.device()
if args.only and device.type != args.only:
    raise ValueError(f"this script trains on {args.only} alone")
model = torch.nn.Linear(args.width, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(torch.randn(4, args.width), torch.randint(2, (4,)))] * 1000
for inputs, labels in pl.MpDeviceLoader(batches, device):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    xm.optimizer_step(optimizer)
print("all 1000 steps")
"""
CUDA_SCRIPT = """
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(8, 2).to(device)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(1000):
    model(torch.randn(4, 8).to(device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRCOMP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(SCRIPT, id="torch_xla", marks=pytest.mark.long),
        pytest.param(CUDA_SCRIPT, id="cuda"),
    ],
)
def test_each_form_makes_the_steps_and_one_is_recommended(
    script: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "train.py").write_text(script)
    assert main(["bench", "train.py", "--steps", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    forms = {form["form"]: form for form in found["forms"]}
    assert list(forms) == ["eager", "lazy", "compile"]
    assert found["use"] in forms
    for form in forms.values():
        assert form["problem"] is None
        assert form["steps"] == 8
        assert form["step_seconds"] > 0
        assert form["first_step_seconds"] > 0
    assert forms["eager"]["compiles"] == 0
    assert 1 <= forms["lazy"]["compiles"] <= 3
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_form_that_fails_is_named_and_the_others_go_on(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "train.py").write_text(SCRIPT)
    words = ["--steps", "4", "--devices", "2", "--", "--width=16", "--only", "xla"]
    assert main(["bench", "train.py", *words]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "failed: ValueError: this script trains on xla alone" in shown[1]
    assert shown[-1].startswith(("Use lazy", "Use compile"))
