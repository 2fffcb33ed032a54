"""What a sync compiles, reuses, donates and counts."""

from __future__ import annotations

from collections import OrderedDict
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import trcomp.runtime as rt
from trcomp.runtime import executables
from trcomp.runtime.graph import build
from trcomp.runtime.ir import restore_pending, take_pending
from trcomp.runtime.metrics import counters
from trcomp.runtime.ops.registry import RULES

pytestmark = pytest.mark.runtime
DEVICE = "xla"


@pytest.fixture(autouse=True)
def nothing_pending() -> None:
    rt.sync(wait=True)


class Delta:
    """How much each counter has grown."""

    def __init__(self) -> None:
        self._before = rt.metrics()

    def __getattr__(self, name: str) -> Any:
        return rt.metrics()[name] - self._before[name]


def _model() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).to(
        DEVICE
    )
    return model, torch.randn(4, 6).to(DEVICE), torch.tensor([0, 1, 2, 1]).to(DEVICE)


def _step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_a_changing_learning_rate_compiles_nothing(name: str, foreach: bool) -> None:
    model, x, y = _model()
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, foreach=foreach)
    delta = Delta()
    for i, lr in enumerate([0.1, 0.05, 0.0, 1.0, 0.7, 1e-8, 0.0, 1.0, 0.3]):
        optimizer.param_groups[0]["lr"] = lr
        _step(model, optimizer, x, y)
        rt.sync()
        if i == 1:
            warm = delta.compiles
    assert delta.compiles == warm <= 2
    assert delta.cache_hits >= 7
    assert delta.early_syncs == 0


def test_two_scalars_that_coincide_compile_nothing() -> None:
    x = torch.ones(3, device=DEVICE)
    rt.sync()
    (x * 0.5 + 0.25).add_(1.0)
    for left, right in [(0.5, 0.25), (0.5, 0.5), (1.0, 1.0), (0.0, 1.0)]:
        made = x * left + right
        rt.sync()
        assert made.tolist() == [left + right] * 3
    delta = Delta()
    made = x * 7.0 + 7.0
    rt.sync()
    assert delta.compiles == 0
    assert made.tolist() == [14.0] * 3


def test_a_step_donates_what_it_replaces_and_a_read_does_not() -> None:
    model, x, y = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        _step(model, optimizer, x, y)
        rt.sync()
    delta = Delta()
    _step(model, optimizer, x, y)
    rt.sync()
    assert delta.donated_buffers >= 8  # four parameters and four momenta
    before = [p.detach().clone() for p in model.parameters()]
    delta = Delta()
    loss = _step(model, optimizer, x, y)
    assert loss.item() > 0
    assert delta.early_syncs == 1
    assert delta.donated_buffers == 0
    assert all(bool(torch.isfinite(p).all()) for p in before)


def test_a_tensor_kept_from_before_a_step_keeps_its_value() -> None:
    model, x, y = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weight = model[0].weight  # type: ignore[index]
    kept, alias = weight.detach().clone(), weight.detach()
    first = weight.tolist()
    for _ in range(3):
        _step(model, optimizer, x, y)
        rt.sync()
    assert kept.tolist() == first
    assert alias.tolist() == weight.tolist() != first


def test_outputs_that_are_inputs_get_buffers_of_their_own() -> None:
    x = torch.arange(4.0).to(DEVICE)
    y = x.clone()
    z = y.clone()
    rt.sync()
    y.add_(1)
    rt.sync()
    z.mul_(2)
    rt.sync()
    assert (x.tolist(), y.tolist(), z.tolist()) == (
        [0, 1, 2, 3],
        [1, 2, 3, 4],
        [0, 2, 4, 6],
    )


@pytest.mark.parametrize("swap", [False, True])
def test_graphs_that_differ_only_in_how_operands_are_wired_do_not_collide(swap: bool) -> None:
    t = [torch.tensor([float(n)], device=DEVICE) for n in (2, 3, 5)]
    rt.sync()
    a, b = (t[2], t[1]) if swap else (t[1], t[2])
    made = t[0] * a + b
    for tensor in t:
        tensor.add_(0)
    rt.sync()
    assert made.item() == (2 * 5 + 3 if swap else 2 * 3 + 5)


def test_the_output_of_a_node_is_part_of_the_key() -> None:
    x = torch.tensor([[3.0, 1.0, 2.0]], device=DEVICE)
    rt.sync()
    values = x.max(1).values
    rt.sync()
    indices = x.max(1).indices
    rt.sync()
    assert (values.item(), indices.item()) == (3.0, 0)


def test_dead_results_are_not_computed() -> None:
    x = torch.ones(3, device=DEVICE)
    rt.sync()
    delta = Delta()
    for _ in range(10):
        x * 2
    rt.sync()
    assert delta.executions == 0
    assert delta.recorded_nodes == 10


def test_a_graph_prints_as_text() -> None:
    x = torch.ones(2, 3, device=DEVICE)
    rt.sync()
    y = (x @ x.t()).relu()
    values = take_pending()
    text = str(build(values, donate=True))
    restore_pending(values)
    assert text.splitlines() == [
        "in0: ((2, 3), dtype('float32'))",
        "%0 = mm -> float32[2, 2] (in0, in0)",
        "%1 = relu -> float32[2, 2] (%0.0)",
        "return %1.0",
    ]
    assert y.tolist() == [[3, 3], [3, 3]]


def test_debug_writes_each_compiled_graph(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRCOMP_DEBUG", "1")
    monkeypatch.setenv("TRCOMP_REPORT_DIR", str(tmp_path / "trcomp"))
    (torch.ones(3, 7, device=DEVICE) @ torch.ones(7, 5, device=DEVICE)).tolist()
    written = {path.name.split(".", 1)[1]: path.read_text() for path in tmp_path.glob("compiler/*")}
    assert written.keys() == {"txt", "stablehlo.txt", "hlo.txt"}
    assert "mm -> float32[3, 5]" in written["txt"]
    assert "stablehlo.dot_general" in written["stablehlo.txt"]
    assert "f32[3,5]" in written["hlo.txt"]


def test_executables_that_are_used_least_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executables, "_MAX_EXECUTABLES", 0)
    monkeypatch.setattr(executables, "_executables", OrderedDict())
    delta = Delta()
    for _ in range(2):
        assert (torch.ones(3, device=DEVICE) + 1).tolist() == [2.0] * 3
    assert delta.compiles == 2


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="counts Linux's mappings")
def test_many_graphs_do_not_use_up_the_mappings_of_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def mappings() -> int:
        return Path("/proc/self/maps").read_bytes().count(b"\n")

    allowed = int(Path("/proc/sys/vm/max_map_count").read_text())
    bound = mappings() + 200
    monkeypatch.setattr(executables, "_executables", OrderedDict())
    monkeypatch.setattr(executables, "_MAX_MAPPED_SHARE", bound / allowed)
    monkeypatch.setattr(executables, "_COUNTED_EVERY", 4)
    most = 0
    for size in range(40, 80):
        x = torch.ones(size, size + 1, device=DEVICE)
        assert (x @ x.T).sum().item() == size * size * (size + 1)
        most = max(most, mappings())
    assert executables.count() < 40
    assert most < bound + 300


def test_an_operator_that_cannot_be_lowered_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(ctx: object, self: object) -> object:
        raise NotImplementedError("no such instruction")

    x = torch.ones(3, device=DEVICE) * 3
    rule = RULES["tan"]
    before = rule.lower
    object.__setattr__(rule, "lower", broken)
    try:
        spoilt = x.tan() + 1
        for _ in range(2):
            with pytest.raises(NotImplementedError, match="no such instruction"):
                spoilt.tolist()
        assert (x + 1).tolist() == [4.0] * 3
        rt.sync()
        with pytest.raises(NotImplementedError):
            (spoilt * 2).tolist()
    finally:
        object.__setattr__(rule, "lower", before)
    assert (x * 2).tolist() == [6.0] * 3


def test_out_of_memory_says_what_filled_it() -> None:
    x = torch.ones(1000, device=DEVICE)
    rt.sync()
    huge = x.expand(10**10, 1000) + 1
    with pytest.raises(MemoryError) as caught:
        rt.sync(wait=True)
    text = str(caught.value)
    assert "cpu:0 is out of memory" in text.lower()
    assert "The graph has 1 operations; it reads 3.9 KB" in text
    assert "Largest results: add.Tensor float32[10000000000, 1000] (36.4 TB)" in text
    assert "smaller batch" in text
    del huge
    assert x.sum().item() == 1000


def test_a_failed_sync_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, device=DEVICE) * 41

    def broken(graph: object) -> None:
        raise MemoryError("no")

    with monkeypatch.context() as patch:
        patch.setattr(import_module("trcomp.runtime.sync"), "_run", broken)
        with pytest.raises(MemoryError):
            rt.sync()
    assert (x + 1).tolist() == [42.0] * 3


def test_a_step_that_reads_its_loss_is_a_step() -> None:
    model, x, y = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rt.sync()
    delta = Delta()
    for _ in range(3):
        assert _step(model, optimizer, x, y).item() > 0
        rt.sync()
        rt.sync()
    assert delta.steps == 3


def test_synchronize_computes_and_waits() -> None:
    x = torch.ones(3, device=DEVICE) + 1
    delta = Delta()
    torch.xla.synchronize()  # type: ignore[attr-defined]
    assert delta.executions == 1
    assert x.tolist() == [2.0] * 3
    assert delta.executions == 1


def test_metrics_are_plain_and_cumulative() -> None:
    before = rt.metrics()
    (torch.ones(5, device=DEVICE) + 1).tolist()
    after = rt.metrics()
    assert {
        "compiles",
        "cache_hits",
        "executions",
        "recorded_nodes",
        "early_syncs",
        "fallbacks",
        "record_seconds",
        "compile_seconds",
        "run_seconds",
        "input_wait_seconds",
    } <= after.keys()
    assert after["early_syncs"] == before["early_syncs"] + 1
    assert all(after[k] >= before[k] for k in after if k != "fallbacks")
    assert "early_syncs" in rt.metrics_report()


def test_recording_time_is_what_a_step_spends_outside_the_runtime() -> None:
    import time

    x = torch.ones(3, device=DEVICE)
    rt.sync()
    x.add_(1)
    rt.sync()
    before = rt.metrics()["record_seconds"]
    time.sleep(0.2)
    x.add_(1)
    rt.sync()
    assert 0.15 < rt.metrics()["record_seconds"] - before < 2


def test_an_operator_without_a_lowering_runs_on_the_cpu_and_is_named_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    counters.fallbacks.pop("nonzero", None)
    x = torch.tensor([1.0, 2.0])
    for _ in range(2):
        made = torch.nonzero(x.to(DEVICE))
        torch.testing.assert_close(made.cpu(), torch.nonzero(x))
    assert rt.metrics()["fallbacks"]["nonzero"] == 2
    assert capfd.readouterr().err.count("nonzero") == 1


def test_no_parameter_is_left_behind_after_many_steps() -> None:
    import jax

    model, x, y = _model()
    optimizer = torch.optim.Adam(model.parameters())
    counts = []
    for i in range(30):
        _step(model, optimizer, x, y)
        rt.sync(wait=True)
        if i > 2:
            counts.append(len(jax.live_arrays()))
    assert len(set(counts)) == 1


def test_walking_along_a_computed_tensor_compiles_nothing_more() -> None:
    batches = torch.arange(24.0).reshape(12, 2).to(DEVICE)
    kept = torch.zeros(6).to(DEVICE)
    rt.sync()
    compiles = []
    for i in range(6):
        time = batches[i, 1]
        kept[i] = (batches[2 * i : 2 * i + 2].sum(0) * time.expand(2)).sum()
        rt.sync()
        compiles.append(rt.metrics()["compiles"])
    # A tensor that begins where its storage does, as in the first step, needs no place.
    assert compiles[1:] == [compiles[1]] * 5
    flat = torch.arange(24.0).reshape(6, 4)
    expected = flat.sum(1) * torch.arange(24.0).reshape(12, 2)[:6, 1]
    torch.testing.assert_close(kept.cpu(), expected)


def test_walking_along_an_inner_dimension_compiles_nothing_more() -> None:
    host, cache = torch.zeros(2, 3, 7, 4), torch.zeros(2, 3, 7, 4).to(DEVICE)
    keys = torch.arange(48.0).view(2, 3, 8)
    rt.sync()
    compiles = []
    for i in range(6):
        for base, source in ((host, keys), (cache, keys.to(DEVICE))):
            base[:, :, i] = source[:, :, 2:6] + i
            base[:, 1, i, 1:3] *= base[:, 0, i : i + 1, 2]
        rt.sync()
        compiles.append(rt.metrics()["compiles"])
    assert compiles[1:] == [compiles[1]] * 5
    assert torch.equal(cache.cpu(), host)
