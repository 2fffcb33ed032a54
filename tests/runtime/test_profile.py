"""A job's traces and dumps say which module, scope and line each operation is of."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.rank_scripts import run_script

pytestmark = pytest.mark.runtime

_SCRIPT = """
import torch
import torch_xla.debug.profiler as xp
import trcomp.runtime as rt

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())

    def forward(self, inputs):
        return self.layers(inputs)

def step(model, optimizer, inputs):
    optimizer.zero_grad()
    with xp.Trace("loss"):
        loss = model(inputs).square().sum()
    loss.backward()
    with torch.profiler.record_function("update"):
        optimizer.step()
    return loss

def trainer(compiles, whole):
    model = Net().to(rt.device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = torch.compile(model, backend="trcomp") if compiles else model
    own = rt.step(step) if whole else step

    def train():
        for inputs in rt.DeviceLoader([torch.ones(4, 8)] * 2):
            own(model, optimizer, inputs)

    return train

trainers = [trainer(*form) for form in FORMS]
for train in trainers * 2:
    train()
"""
_LINE = 1 + _SCRIPT.splitlines().index("        return self.layers(inputs)")


def _trace(folder: Path, script: str, steps: str, **environ: str) -> list[dict[str, Any]]:
    reports = str(folder / "trcomp")
    own = {"TRCOMP_WORKER": "1", "TRCOMP_PROFILE_STEPS": steps, "TRCOMP_REPORT_DIR": reports}
    ended = run_script(script, folder, own | environ)
    assert ended.returncode == 0, ended.stderr
    assert f"wrote a profile of steps {steps[0]} to" in ended.stderr
    with gzip.open(folder / "profile" / "rank-0.trace.json.gz", "rt") as stream:
        return list(json.load(stream)["traceEvents"])


@pytest.mark.slow
def test_operations_have_the_scripts_names_however_they_were_recorded(tmp_path: Path) -> None:
    forms = "[(False, False), (True, False), (False, True)]"
    # The second round, all of it: the script ends before step 20.
    events = _trace(tmp_path, _SCRIPT.replace("FORMS", forms), "7-20", TRCOMP_DEBUG="1")
    places = {
        (e["args"]["hlo_module"], e["name"], e["args"]["source"].rpartition("/")[2])
        for e in events
        if "source" in e.get("args", {})
    }
    modules = {module for module, _, _ in places}
    assert len(modules) == 3, "each form has an executable of its own"
    named = {(name, source) for _, name, source in places}
    line = f"script.py:{_LINE}"
    assert {
        ("loss/Net/layers/0/linear", line),
        ("backward/loss/Net/layers/1/tanh_backward", line),
    } <= named
    names = {name for name, _ in named}
    # What torch.compile traced has its modules from the trace.
    assert {"loss/layers/0/linear", "backward/layers/0/linear_backward"} <= names
    assert "update/Optimizer.step#SGD.step/_foreach_add" in names
    host = {e.get("name") for e in events if "hlo_op" not in e.get("args", {})}
    assert {"loss", "update"} <= host
    assert list((tmp_path / "profile/plugins/profile").rglob("rank-0.xplane.pb"))
    report = json.loads((tmp_path / "trcomp/rank-0.json").read_text())
    assert report["profile"] == {"steps": [7, 12], "file": "profile/rank-0.trace.json.gz"}
    # The dumps: of each form its graph in three texts, which name the same.
    dumps = {path.name for path in (tmp_path / "compiler").iterdir()}
    graphs = {name.removesuffix(".hlo.txt") for name in dumps if name.endswith(".hlo.txt")}
    assert {f"jit_{graph.removeprefix('rank-0-').replace('-', '_')}" for graph in graphs} >= modules
    assert dumps == {
        f"{graph}{kind}.txt" for graph in graphs for kind in ("", ".stablehlo", ".hlo")
    }


def test_a_job_without_xla_is_traced_by_torch(tmp_path: Path) -> None:
    script = _SCRIPT.replace("FORMS", "[(False, False)]")
    events = _trace(tmp_path, script, "2-3", TRCOMP_ENABLED="0")
    assert {"loss", "update", "aten::addmm"} <= {event.get("name") for event in events}
