"""A job's traces and dumps say which module, scope and line each operation is of."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from tests.runtime.rank_scripts import run_script
from trcomp import flags
from trcomp.runtime import client, compiler, hlo_places

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


_ADD = 'op_name="jit(step)/loss/Net/add" stack_frame_id=1'
_LINEAR = 'op_name="jit(step)/loss/Net/linear/dot_general" stack_frame_id=2'
_REDUCE = 'op_name="jit(step)/backward/all_reduce/psum"'
_GPU_HLO = f"""HloModule jit_step, is_scheduled=true

FileNames
1 "/opt/ml/code/train.py"

FunctionNames
1 "step"

FileLocations
1 {{file_name_id=1 function_name_id=1 line=41 end_line=41 column=4 end_column=9}}
2 {{file_name_id=1 function_name_id=1 line=57 end_line=57 column=4 end_column=9}}

StackFrames
1 {{file_location_id=1 parent_frame_id=1}}
2 {{file_location_id=2 parent_frame_id=2}}


%fused_add (a: f32[8]) -> f32[8] {{
  %a = f32[8]{{0}} parameter(0)
  ROOT %add.3 = f32[8]{{0}} add(%a, %a), metadata={{{_ADD}}}
}}

ENTRY %main.9 (x: f32[8]) -> f32[8] {{
  %x = f32[8]{{0}} parameter(0)
  %loop_add_fusion.2 = f32[8]{{0}} fusion(%x), calls=%fused_add, metadata={{{_ADD}}}
  %custom-call.3 = f32[8]{{0}} custom-call(%loop_add_fusion.2), metadata={{{_LINEAR}}}
  ROOT %all-reduce-start.1 = f32[8]{{0}} all-reduce-start(%custom-call.3), metadata={{{_REDUCE}}}
}}
"""
_KERNELS = {
    "loop_add_fusion_2": "loop_add_fusion.2",
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT": "custom-call.3",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(Args<4096ul>)": "all-reduce-start.1",
}


def _gpu_trace() -> dict[str, Any]:
    """As jax's profiler writes it on a GPU: the device's lanes are its streams."""
    stream, copies, launches = (1, 118), (1, 120), (701, 9)
    names = [
        ("process_name", (1, 0), "/device:GPU:0"),
        ("thread_name", stream, "Stream #118(MemcpyD2D,Compute,Memset)"),
        ("thread_name", copies, "Stream #120(MemcpyH2D)"),
        ("process_name", (701, 0), "/host:CPU"),
        ("thread_name", launches, "py_xla_execute"),
    ]
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}
        for what, (pid, tid), name in names
    ]

    def add(lane: tuple[int, int], name: str, **args: str) -> None:
        pid, tid = lane
        event = {"ph": "X", "pid": pid, "tid": tid, "ts": 10.0 * len(events), "dur": 5.0}
        events.append(event | {"name": name, "args": {"correlation_id": "7"} | args})

    for kernel, operation in _KERNELS.items():
        add(stream, kernel, hlo_module="jit_step(42)", hlo_op=operation, kernel_details="regs:32")
        add(launches, "cuLaunchKernelEx")
    add(stream, "MemsetD32", memset_details="async")
    add(copies, "MemcpyH2D", memcpy_details="size:64")
    add(stream, "loop_add_fusion_2", hlo_module="jit_other", hlo_op="loop_add_fusion.2")
    return {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": events}


def test_kernels_of_a_gpu_have_the_scripts_names_in_the_lanes_of_its_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = SimpleNamespace(as_text=lambda: _GPU_HLO)
    monkeypatch.setattr(hlo_places, "_executables", {"jit_step": program})
    source, target = tmp_path / "jax.trace.json.gz", tmp_path / "rank-3.trace.json.gz"
    with gzip.open(source, "wt") as stream:
        json.dump(_gpu_trace(), stream)
    hlo_places.write_trace(source, target, 3)
    with gzip.open(target, "rt") as stream:
        events = json.load(stream)["traceEvents"]
    lanes: dict[int, list[Any]] = {}
    for event in events:
        if event["ph"] == "X":
            lanes.setdefault(event["tid"], []).append(event)
    named, unknown = lanes[118][:3], lanes[118][3:]
    assert [(one["name"], one["args"]["source"]) for one in named] == [
        ("loss/Net", "/opt/ml/code/train.py:41"),
        ("loss/Net/linear", "/opt/ml/code/train.py:57"),
        ("backward/all_reduce", ""),
    ]
    # What the GPU itself calls them stays, with all that the profiler said of them.
    assert [one["args"]["kernel"] for one in named] == list(_KERNELS)
    assert {one["args"]["kernel_details"] for one in named} == {"regs:32"}
    # Neither what is of no instruction nor what another program has run is given a name.
    assert [one["name"] for one in unknown] == ["MemsetD32", "loop_add_fusion_2"]
    assert [one["name"] for one in lanes[120]] == ["MemcpyH2D"]
    assert {one["name"] for one in lanes[9]} == {"cuLaunchKernelEx"}
    names = {one["args"]["name"] for one in events if one["ph"] == "M"}
    assert {"rank 3 /device:GPU:0", "rank 3 /host:CPU", "Stream #120(MemcpyH2D)"} <= names


def test_a_traced_job_has_a_gpu_run_kernels_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    option = "xla_gpu_enable_command_buffer"
    monkeypatch.setattr(client, "platform", lambda: "gpu")
    assert option not in compiler.compiler_options(), "only a trace asks for it"
    monkeypatch.setenv(flags.PROFILE_STEPS.name, "3-4")
    assert compiler.compiler_options()[option] == ""
    # This jaxlib takes the option, on any device: an unknown one is an error.
    jax.jit(lambda x: x + 1).lower(1.0).compile({option: ""})
    monkeypatch.setenv("XLA_FLAGS", f"--{option}=FUSION")
    assert option not in compiler.compiler_options()
    monkeypatch.delenv("XLA_FLAGS")
    monkeypatch.setattr(client, "platform", lambda: "cpu")
    assert option not in compiler.compiler_options()
