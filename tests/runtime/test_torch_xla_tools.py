"""What the torch_xla tree has around training: metrics, graphs as files, traces, utilities."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trcomp.compat
import trcomp.runtime as rt
from trcomp.errors import UnsupportedError

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.filterwarnings("ignore:torch_xla:DeprecationWarning"),
]


@pytest.fixture(autouse=True, scope="module")
def tree() -> None:
    trcomp.compat.install()


@pytest.fixture
def xm() -> Any:
    return importlib.import_module("torch_xla.core.xla_model")


def test_metrics_under_torch_xlas_names() -> None:
    import torch_xla.debug.metrics as met

    (torch.ones(3, 1237, device="xla") + 1).tolist()  # Of a size that nothing else has compiled.
    rt.sync()
    torch.geqrf(torch.eye(2, device="xla"))
    assert "aten::geqrf" in met.executed_fallback_ops()
    assert "Counter: aten::geqrf\n  Value: 1" in met.metrics_report()
    assert "compiles" in met.metrics_report()
    assert met.counter_value("UncachedCompile") >= 1
    assert met.counter_value("NoSuchCounter") is None
    samples, nanoseconds, _ = met.metric_data("CompileTime")
    assert samples >= 1 and nanoseconds > 0
    assert met.metric_data("NoSuchMetric") is None
    assert {"CompileTime", "TransferFromDeviceTime"} <= set(met.metric_names())
    samples, total, recent = met.metric_data("InboundData")
    # The latest are kept one by one.
    assert len(recent) == min(samples, 1024) and total >= sum(value for _, value in recent) > 0
    report = met.metrics_report()
    assert f"Metric: CompileTime\n  TotalSamples: {met.metric_data('CompileTime')[0]}\n" in report
    assert f"Counter: UncachedCompile\n  Value: {met.counter_value('UncachedCompile')}\n" in report
    assert "InboundData" not in met.short_metrics_report()
    short = met.short_metrics_report(["MarkStep"], ["InboundData"])
    assert "Metric: InboundData" in short and "CompileTime" not in short
    assert "MarkStep" in met.counter_names()


def test_counters_start_from_zero() -> None:
    import torch_xla.debug.metrics as met

    (torch.ones(3, device="xla") + 1).tolist()
    met.clear_all()
    assert met.counter_names() == [] and met.metric_names() == []


def test_metrics_go_to_a_file_after_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch_xla

    monkeypatch.setenv("XLA_METRICS_FILE", str(tmp_path / "metrics.txt"))
    for _ in range(2):
        torch_xla.sync()
    assert (tmp_path / "metrics.txt").read_text().count("[MetricsData; step=") == 2


def test_background_closures_run_in_order_and_their_failure_is_raised_at_a_step(xm: Any) -> None:
    from torch_xla.core._async_closures import handler

    order: list[Any] = []
    main = threading.current_thread()
    for number in range(3):
        value = torch.full((2,), float(number), device="xla")
        xm.add_step_closure(
            lambda t: order.append((t.sum().item(), threading.current_thread() is main)),
            (value,),
            run_async=True,
        )
    xm.mark_step()
    handler()._pool.submit(lambda: None).result()
    assert order == [(0, False), (2, False), (4, False)]
    xm.add_step_closure(lambda: 1 / 0, run_async=True)
    xm.mark_step()
    handler()._pool.submit(lambda: None).result()
    with pytest.raises(RuntimeError, match="background raised") as caught:
        xm.mark_step()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_pending_tensors_as_a_graph_and_as_a_program(xm: Any, tmp_path: Path) -> None:
    import torch_xla
    from torch_xla.debug.graph_saver import save_tensors_graph

    x = torch.ones(3, device="xla")
    rt.sync()
    y = torch.sin(x) * 2
    assert "sin" in torch_xla._XLAC._get_xla_tensors_text([y])
    assert "HloModule" in torch_xla._XLAC._get_xla_tensors_hlo([y])
    assert "stablehlo.sine" in xm.get_stablehlo([y]) and "stablehlo" in xm.get_stablehlo()
    assert xm.get_stablehlo_bytecode([y])[:4] == b"ML\xefR"
    save_tensors_graph(tmp_path, "step", [y])
    assert "sin" in (tmp_path / "step-0.text").read_text()
    assert "Pending: True" in torch_xla._XLAC._get_xla_tensor_debug_info(y)
    rt.sync()
    assert torch_xla._XLAC._get_xla_tensors_text([y]) == "torch.float32[3] = xla::device_data"
    with pytest.raises(ValueError, match="pending"):
        xm.get_stablehlo([y])


def test_a_barrier_changes_nothing_but_the_program(xm: Any) -> None:
    weight = torch.ones(2, device="xla", requires_grad=True)
    xm.optimization_barrier_([weight])
    (weight * 3).sum().backward()
    assert weight.tolist() == [1, 1] and weight.grad.tolist() == [3, 3]


def test_the_random_stream_is_put_back(xm: Any) -> None:
    with xm.fork_rng():
        first = torch.rand(3, device="xla").tolist()
    assert torch.rand(3, device="xla").tolist() == first


def test_rates_are_counted() -> None:
    import torch_xla.core.xla_model as xm

    tracker = xm.RateTracker(smooth_factor=0.5)
    tracker.add(10)
    assert tracker.rate() > tracker.global_rate() * 0.5 > 0
    tracker.add(0)
    assert tracker.global_rate() > 0


def test_tensors_of_nested_data_are_converted_at_once(xm: Any) -> None:
    calls: list[int] = []

    def convert(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        calls.append(len(tensors))
        return [tensor + 1 for tensor in tensors]

    arena = xm.ToXlaTensorArena(convert, lambda tensor: tensor.dim() == 1)
    data = {"a": [torch.zeros(1), torch.zeros(())], "b": (torch.zeros(2), "text")}
    made = arena.transform(data)
    assert calls == [2] and made["b"][1] == "text"
    assert [made["a"][0].tolist(), made["a"][1].item(), made["b"][0].tolist()] == [[1], 0, [1, 1]]
    base = torch.zeros(4, device="xla")
    xm.check_view_sharing([base, base, torch.zeros(2)])
    with pytest.raises(RuntimeError, match="shares its memory"):
        xm.check_view_sharing({"base": base, "view": base[:2]})


def test_memory_is_told(xm: Any) -> None:
    info = xm.get_memory_info()
    assert 0 < info["bytes_used"] <= info["peak_bytes_used"] <= info["bytes_limit"]


def test_tensors_are_exchanged_with_other_libraries_as_copies() -> None:
    from torch_xla.utils.dlpack import from_dlpack, to_dlpack

    ours = from_dlpack(np.arange(3.0))
    assert ours.device.type == "xla"
    theirs = torch.utils.dlpack.from_dlpack(to_dlpack(ours))
    ours.add_(1)
    assert (theirs.tolist(), ours.tolist()) == ([0, 1, 2], [1, 2, 3])


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_keeps_gradients_and_masks(use_reentrant: bool) -> None:
    from torch_xla.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)).to("xla")
    x = torch.ones(4, 8, device="xla", requires_grad=True)
    gradients = []
    for run in (model, lambda t: checkpoint(model, t, use_reentrant=use_reentrant)):
        torch.manual_seed(1)
        (gradient,) = torch.autograd.grad(run(x).square().sum(), [x]) if run is model else (None,)
        if gradient is None:
            run(x).square().sum().backward()
            gradient = x.grad
        gradients.append(gradient.cpu())
    torch.testing.assert_close(*gradients)


def test_the_tree_knows_how_precise_products_are() -> None:
    from torch_xla import backends

    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("high", "default", "highest"):
            backends.set_mat_mul_precision(precision)
            assert backends.get_mat_mul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)
    with pytest.raises(ValueError, match="allowed: highest, high, default"):
        backends.set_mat_mul_precision("low")


def test_traces_name_blocks_and_end_steps(xm: Any, tmp_path: Path) -> None:
    import torch_xla.debug.profiler as xp

    steps = rt.metrics()["steps"]
    xp.start_trace(str(tmp_path))
    with xp.StepTrace("step", step_num=1), xp.Trace("inner"):
        value = torch.ones(2, device="xla") * 3
    xp.stop_trace()
    assert rt.metrics()["steps"] == steps + 1 and value.tolist() == [3, 3]
    assert list(tmp_path.rglob("*.xplane.pb"))
    assert xp.trace_me("name")(lambda a: a + 1)(1) == 2
    with pytest.raises(UnsupportedError, match="own server"):
        xp.trace("elsewhere:9012", str(tmp_path))


def test_the_bridge_of_torchs_backend_records_a_traced_graph() -> None:
    from torch_xla.core.dynamo_bridge import extract_compiled_graph

    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()).to("xla")
    x = torch.ones(2, 3, device="xla")
    call = extract_compiled_graph(torch.fx.symbolic_trace(model), (x,))
    torch.testing.assert_close(call(x), model(x))


def test_data_of_a_scripts_own_takes_itself_apart(xm: Any) -> None:
    from torch_xla.utils.utils import DataWrapper

    class Pair(DataWrapper):
        def get_tensors(self) -> list[torch.Tensor]:
            return [torch.ones(1), torch.zeros(1)]

        def from_tensors(self, tensors: Any) -> Any:
            return dict(enumerate(tensors))

    for moved in (
        xm.send_cpu_data_to_device(Pair(), xm.xla_device()),
        xm.send_cpu_data_to_device([Pair()], xm.xla_device())[0],
    ):
        assert [tensor.device.type for tensor in moved.values()] == ["xla", "xla"]
    (single,) = xm.send_cpu_data_to_device(torch.ones(2), "xla")
    assert single.device.type == "xla"


def test_plugins_of_cpus_and_gpus_are_accepted_and_others_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch_xla.experimental import plugins

    monkeypatch.setenv("PJRT_DYNAMIC_PLUGINS", "0")
    monkeypatch.setattr(plugins, "_registered", {})

    class Mine(plugins.DevicePlugin):
        def library_path(self) -> str:
            return "/nowhere/library.so"

    plugins.use_dynamic_plugins()
    plugins.register_plugin("CPU", Mine())
    assert plugins.using_dynamic_plugins()
    assert plugins.default().library_path() == "/nowhere/library.so"
    assert plugins.default().physical_chip_count() == 1
    assert torch.ones(2, device="xla").tolist() == [1, 1]
    with pytest.raises(RuntimeError, match=r"register_plugin\('TPU', …\).*\n  Next: Install"):
        plugins.register_plugin("TPU", Mine())
