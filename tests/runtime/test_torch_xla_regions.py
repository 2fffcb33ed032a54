"""torch_xla's regions and modes: compile, step, eager mode, a loop cut into one small graph."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

import trcomp.compat
import trcomp.runtime as rt
from trcomp.errors import DeviceError, UnsupportedError

pytestmark = pytest.mark.runtime


@pytest.fixture(scope="module")
def torch_xla() -> Any:
    trcomp.compat.install()
    return importlib.import_module("torch_xla")


def counted(name: str) -> int:
    return int(rt.metrics()[name])


def test_sync_in_a_loop_cuts_one_huge_graph_into_one_reused_small_one(torch_xla: Any) -> None:
    weight = torch.rand(4, 4)
    expected, x = torch.ones(4), torch.ones(4, device="xla")
    on_device = weight.to("xla")
    torch_xla.sync()
    compiles, executions = counted("compiles"), counted("executions")
    for _ in range(20):
        x = torch.tanh(on_device @ x)
        expected = torch.tanh(weight @ expected)
        torch_xla.sync()
    assert counted("compiles") - compiles == 1
    assert counted("executions") - executions == 20
    torch.testing.assert_close(x.cpu(), expected)


def test_a_region_is_computed_at_its_end_and_what_was_pending_before_it(torch_xla: Any) -> None:
    before = torch.ones(3, device="xla") * 2
    executions = counted("executions")
    with torch_xla.step():
        assert counted("executions") - executions == 1
        inside = before + 1
    assert counted("executions") - executions == 2
    assert inside.tolist() == [3, 3, 3]


def test_compile_is_a_decorator_a_wrapper_and_a_context(torch_xla: Any) -> None:
    x = torch.ones(2, device="xla")

    @torch_xla.compile(full_graph=True)
    def double(value: torch.Tensor) -> torch.Tensor:
        return value * 2

    model = torch.nn.Linear(2, 1).to("xla")
    assert double(x).tolist() == [2, 2]
    torch.testing.assert_close(torch_xla.compile(model)(x), model(x))
    with torch_xla.compile():
        result = x + 5
    assert result.tolist() == [6, 6]


def test_a_step_function_trains_in_one_graph(torch_xla: Any) -> None:
    model = torch.nn.Linear(3, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    compiled = torch_xla.compile(step, full_graph=True, max_different_graphs=1)
    replays = counted("replays")
    losses = [compiled(torch.ones(4, 3, device="xla")).item() for _ in range(4)]
    assert losses == sorted(losses, reverse=True)
    assert counted("replays") - replays == 3


def test_full_graph_refuses_an_execution_inside_and_all_goes_on_after(torch_xla: Any) -> None:
    @torch_xla.compile(full_graph=True)
    def reads(value: torch.Tensor) -> float:
        return float((value * 7).sum().item())

    x = torch.ones(3, device="xla")
    with pytest.raises(DeviceError, match="reads was compiled with full_graph=True"):
        reads(x)
    assert (x * 7).tolist() == [7, 7, 7]


def test_too_many_graphs_say_what_differs(torch_xla: Any) -> None:
    @torch_xla.compile(max_different_graphs=1, name="doubling")
    def double(value: torch.Tensor) -> torch.Tensor:
        return value * 2

    three, four = torch.ones(3, device="xla"), torch.ones(4, device="xla")
    assert double(three).tolist() == double(three).tolist() == [2, 2, 2]
    with pytest.raises(DeviceError, match=r"doubling became graph number 2.*\(\(3,.*\(\(4,"):
        double(four)
    assert double(three).tolist() == [2, 2, 2]


def test_compile_options_of_a_region_are_refused(torch_xla: Any) -> None:
    torch_xla.set_custom_compile_options({})
    for call in (
        lambda: torch_xla.compile(lambda: None, custom_compile_options={"xla_x": True}),
        lambda: torch_xla.set_custom_compile_options({"xla_x": True}),
    ):
        with pytest.raises(UnsupportedError, match="XLA_FLAGS"):
            call()


def test_eager_mode_computes_each_operator_except_in_regions(torch_xla: Any) -> None:
    import torch_xla.debug.metrics as met
    from torch_xla.experimental import eager_mode, eager_mode_context, is_eager_mode

    met.clear_all()

    x = torch.ones(3, device="xla")
    rt.sync()
    executions = counted("executions")
    with eager_mode_context(True):
        assert is_eager_mode()
        y = (x * 3 + 1).relu()
        assert counted("executions") - executions == 3

        @torch_xla.compile
        def region(value: torch.Tensor) -> torch.Tensor:
            assert not is_eager_mode()
            return (value * 3 + 1).relu()

        assert region(x).tolist() == y.tolist() == [4, 4, 4]
        assert counted("executions") - executions == 4
    assert met.metric_data("EagerOpExecuteTime")[0] == 3
    assert not is_eager_mode()
    eager_mode(False)


def test_eager_mode_trains_as_recording_does(torch_xla: Any) -> None:
    from torch_xla.experimental import eager_mode_context

    def weights(eager: bool) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2).to("xla")
        optimizer = torch.optim.Adam(model.parameters())
        with eager_mode_context(eager):
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.ones(2, 3, device="xla")).square().sum().backward()
                optimizer.step()
        return model.weight.flatten().tolist()

    assert weights(True) == pytest.approx(weights(False), rel=1e-6)


def test_micro_batches_in_one_graph_equal_the_whole_batch(torch_xla: Any) -> None:
    from torch_xla.experimental.gradient_accumulation import gradient_accumulation

    torch.manual_seed(0)
    model = torch.nn.Linear(5, 1).to("xla")
    data = torch.randn(4, 3, 5, device="xla")

    def step(batch: torch.Tensor, seen: torch.Tensor) -> Any:
        return model(batch).square().mean(), seen + 1

    loss, seen = gradient_accumulation(step, (data,), model, torch.zeros((), device="xla"))
    got = model.weight.grad.cpu()
    model.zero_grad()
    whole = model(data.flatten(0, 1)).square().mean()
    whole.backward()
    torch.testing.assert_close(got, model.weight.grad.cpu())
    assert loss.item() == pytest.approx(whole.item())
    assert seen.item() == 4
    for bad in ((), (data, data[:2]), ("text",)):
        with pytest.raises(ValueError, match="iterable_tensors"):
            gradient_accumulation(step, bad, model)


def test_scan_carries_and_stacks_with_gradients(torch_xla: Any) -> None:
    from torch_xla.experimental.scan import scan
    from torch_xla.experimental.scan_layers import scan_layers

    init = torch.zeros(2, device="xla", requires_grad=True)
    xs = torch.arange(6.0, device="xla").view(3, 2).requires_grad_()
    carry, ys = scan(lambda c, x: (c + x, {"sum": c + x}), init, xs)
    assert carry.tolist() == [6, 9]
    assert ys["sum"].tolist() == [[0, 1], [2, 4], [6, 9]]
    ys["sum"].sum().backward()
    assert init.grad.tolist() == [3, 3] and xs.grad.tolist() == [[3, 3], [2, 2], [1, 1]]
    assert scan(lambda c, x: (c + x, None), init, xs)[1] is None
    with pytest.raises(ValueError, match="callable"):
        scan(1, init, xs)
    layers = [torch.nn.Linear(2, 2).to("xla") for _ in range(3)]
    torch.testing.assert_close(scan_layers(layers, init), torch.nn.Sequential(*layers)(init))


# torch's own compiler, as it loads.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_collective_in_a_full_graph_says_what_to_do(torch_xla: Any) -> None:
    xm = importlib.import_module("torch_xla.core.xla_model")

    def summed(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = xm.all_reduce(xm.REDUCE_SUM, x)
        return made + 1

    x = torch.ones(2, device="xla")
    with pytest.raises(torch._dynamo.exc.Unsupported, match="Next: leave out fullgraph=True"):
        torch.compile(summed, fullgraph=True)(x)
    assert torch.compile(summed)(x).tolist() == [2.0, 2.0]
