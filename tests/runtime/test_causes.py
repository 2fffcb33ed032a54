"""Each compile has a cause: what changed, at which line of the script, and what to do."""

from __future__ import annotations

import linecache
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import trcomp.runtime as rt
from trcomp import remedies
from trcomp.runtime import (
    announcements,
    causes,
    executables,
    interruptions,
    source_lines,
    timeline,
    varying,
)
from trcomp.runtime.metrics import counters

pytestmark = pytest.mark.runtime

Step = Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def nothing_seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (causes, varying, interruptions):
        module.clear()
    announcements._told.clear()
    monkeypatch.setattr(timeline, "_compiles", [])
    monkeypatch.setattr(counters, "steps", 10)
    monkeypatch.setattr(executables, "_executables", OrderedDict())
    monkeypatch.setenv("TRCOMP_WORKER", "1")
    monkeypatch.setenv("TRCOMP_CACHE", "off")
    yield
    for module in (causes, varying, interruptions):
        module.clear()


def plain(model: torch.nn.Module, values: torch.Tensor) -> torch.Tensor:
    return model(values)


def with_tanh(model: torch.nn.Module, values: torch.Tensor) -> torch.Tensor:
    return model(values).tanh()


def times(number: float) -> Step:
    return lambda model, values: model(values) * number


def in_eval(model: torch.nn.Module, values: torch.Tensor) -> torch.Tensor:
    return model.eval()(values)


def batch(*size: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {"pixels": torch.ones(*size, dtype=dtype)}


def last_cause(*steps: tuple[Step, dict[str, torch.Tensor]]) -> dict[str, Any]:
    """Why the last of these steps was compiled."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 8) for _ in range(6)]
    model = torch.nn.Sequential(*layers, torch.nn.Dropout(0.1)).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rt.sync()
    for function, data in steps:
        for moved in rt.DeviceLoader([data]):
            optimizer.zero_grad()
            function(model, moved["pixels"]).square().mean().backward()
            optimizer.step()
    return dict(timeline.summary([])["compiles"][-1])


def test_another_shape_is_named_by_its_place_in_the_batch_and_told_in_one_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    found = last_cause((plain, batch(4, 3, 8)), (plain, batch(4, 5, 8)))
    assert found["kind"] == "shape"
    assert found["reason"].startswith('batch["pixels"] (float32) was 4x3x8 and is 4x5x8')
    assert found["seconds"] > 0 and found["operations"] >= 20 and found["bytes"] > 1000
    assert "return model(values)" in line_of(found)
    (told,) = [line for line in capfd.readouterr().err.splitlines() if "again" in line]
    assert 'batch["pixels"] (float32) was 4x3x8 and is 4x5x8' in told
    assert f'at {found["line"]}; give batch["pixels"] few shapes: pad to one length' in told


def line_of(found: dict[str, Any]) -> str:
    file, _, number = found["line"].rpartition(":")
    return linecache.getline(file, int(number))


@pytest.mark.parametrize(
    ("first", "second", "kind", "words"),
    [
        ((plain, batch(4, 8)), (plain, batch(3, 8)), "last batch", "was 4x8 and is 3x8"),
        ((plain, batch(4, 8)), (with_tanh, batch(4, 8)), "operation", "new operation tanh"),
        ((times(2.0), batch(4, 8)), (times(2), batch(4, 8)), "number", "was float and is int"),
        ((plain, batch(4, 8)), (in_eval, batch(4, 8)), "mode", "eval() after train()"),
    ],
)
def test_what_changed_is_said(first: Any, second: Any, kind: str, words: str) -> None:
    found = last_cause(first, second)
    assert (found["kind"], words in found["reason"]) == (kind, True), found
    assert found["line"].partition(":")[0].endswith("test_causes.py")


def test_compiles_add_up_by_cause_and_line_and_a_varying_script_is_told_a_few_times(
    capfd: pytest.CaptureFixture[str],
) -> None:
    last_cause(*((plain, batch(4, n, 8)) for n in range(1, 9)))
    worst = next(one for one in causes.summary() if one["kind"] == "shape")
    assert worst["compiles"] == 7 and worst["seconds"] > 0
    assert capfd.readouterr().err.count("compiles again") == 3


def test_sizes_that_come_again_and_again_are_no_last_batch() -> None:
    found = last_cause(*((plain, batch(rows, 8)) for rows in (6, 5, 4)))
    assert found["kind"] == "shape" and "was 5x8 and is 4x8" in found["reason"]


def read_before_the_end(model: torch.nn.Module, values: torch.Tensor) -> torch.Tensor:
    outputs = model(values)
    outputs.sum().item()
    return outputs


def with_positive_rows(model: torch.nn.Module, values: torch.Tensor) -> torch.Tensor:
    outputs = model(values)
    return outputs + outputs[values[:, 0] > 0].sum()


def test_a_step_that_a_read_cuts_is_no_matter_of_its_operations() -> None:
    found = last_cause((plain, batch(4, 8)), (read_before_the_end, batch(4, 8)))
    told = [one for one in causes.summary() if one["kind"] != "first"]
    assert {one["kind"] for one in told} == {"read"}, told
    assert "outputs.sum().item()" in line_of(found)
    assert "after the step" in causes.Cause(found["kind"], found["reason"]).remedy


def test_shapes_behind_a_mask_are_put_down_to_the_mask() -> None:
    def rows(positive: int) -> dict[str, torch.Tensor]:
        return {"pixels": torch.cat([torch.ones(positive, 8), -torch.ones(8 - positive, 8)])}

    found = last_cause(*((with_positive_rows, rows(n)) for n in (3, 4, 5)))
    assert found["kind"] == "selection" and "nonzero" in found["reason"], found
    assert "outputs[values[:, 0] > 0]" in line_of(found)
    assert "torch.where" in causes.Cause(found["kind"], found["reason"]).remedy


def test_a_first_step_that_differs_is_no_fault_of_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counters, "steps", 0)
    found = last_cause((plain, batch(4, 8)), (with_tanh, batch(4, 8)))
    assert found["kind"] == "start" and "new operation tanh" in found["reason"]
    assert not remedies.is_avoidable(found["kind"])


def test_reads_that_cut_a_step_and_operators_on_the_cpu_are_counted_by_line() -> None:
    values = torch.arange(4000.0, device="xla")
    for _ in range(3):
        total = values
        for _ in range(6):
            total = total * 2 + 1
        if total.sum() > 0:
            rt.sync()
    values.nonzero()
    read, operator = sorted(interruptions.summary(), key=lambda one: -one["count"])
    assert (read["kind"], read["count"], read["cuts"]) == ("read", 3, 3)
    assert "if total.sum() > 0" in line_of(read) and read["seconds"] > 0
    assert (operator["kind"], operator["name"], operator["count"]) == ("operator", "nonzero", 1)
    assert "values.nonzero()" in line_of(operator)


def test_lines_are_looked_up_while_graphs_are_new_alone() -> None:
    watch = source_lines.LineWatch
    watch.note_run(is_new=True)
    assert watch.on
    for _ in range(20):
        watch.note_run(is_new=False)
    assert not watch.on
    watch.note_run(is_new=True)
    assert watch.on
