"""Where compiled code meets what is not: breaks, the host, operators without a lowering, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import trcomp.runtime as rt
from tests.runtime.compiled import (
    DEVICE,
    Counted,
    assert_agrees,
    compiled,
    mlp,
)

pytestmark = [
    pytest.mark.runtime,
    # torch's own, as it traces.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]


@pytest.fixture(autouse=True)
def _from_nothing() -> Iterator[None]:
    torch._dynamo.reset()
    rt.sync()
    yield
    torch._dynamo.reset()


def test_a_graph_break_reads_a_value_in_the_middle() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        shift = 1 if y.sum().item() > 0 else -1
        return (y + shift).relu()

    assert_agrees(function, torch.rand(3, requires_grad=True))
    assert_agrees(function, -torch.rand(3))


def test_compiled_and_recorded_parts_mix_in_one_executable() -> None:
    encoder, head = mlp(), nn.Linear(3, 2)
    inputs = torch.randn(4, 6)
    expected = head(F.gelu(encoder(inputs))).square().mean()
    expected.backward()
    gradients = [p.grad.clone() for p in (*encoder.parameters(), *head.parameters())]
    fresh = mlp().to(DEVICE)
    turned, run, on_device = head.to(DEVICE), compiled(fresh), inputs.to(DEVICE)
    turned.zero_grad()
    rt.sync()
    with Counted() as counted:
        loss = turned(F.gelu(run(on_device))).square().mean()
        loss.backward()
        rt.sync()
    assert counted.executions == 1
    torch.testing.assert_close(loss.detach().cpu(), expected.detach())
    for parameter, gradient in zip(
        (*fresh.parameters(), *turned.parameters()), gradients, strict=True
    ):
        torch.testing.assert_close(parameter.grad.cpu(), gradient)


def test_autocast_inside_of_compiled_code_and_around_it() -> None:
    model = nn.Linear(4, 4).to(DEVICE)
    x = torch.randn(3, 4).to(DEVICE)

    def inside(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            return model(x).softmax(-1)

    expected = inside(x)
    assert expected.dtype == torch.float32
    torch.testing.assert_close(compiled(inside)(x).cpu(), expected.cpu())
    with torch.autocast(DEVICE, torch.bfloat16):
        made = compiled(model)(x)
    assert made.dtype == torch.bfloat16
    made.float().sum().backward()
    assert model.weight.grad.dtype == torch.float32


def test_max_pooling_trains() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pooled, places = F.max_pool2d(x, 2, return_indices=True)
        return pooled.relu(), places

    assert_agrees(function, torch.randn(2, 3, 6, 6, requires_grad=True))


def test_a_double_backward_outside_of_compiled_code() -> None:
    x = torch.randn(3).to(DEVICE).requires_grad_()
    y = compiled(lambda x: x.sin())(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient.cpu(), x.detach().cpu().cos())


def test_what_has_no_lowering_runs_on_the_cpu_between_two_regions() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvals(x * 2).abs().sort().values + 1

    before = rt.metrics()["fallbacks"]
    assert_agrees(function, torch.randn(3, 3), calls=3)
    assert rt.metrics()["fallbacks"] != before


def test_a_host_tensor_made_of_a_device_tensor() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.relu().cpu()
        return y + 1, (y * 2).to(x.device) + x

    assert_agrees(function, torch.randn(3))


def test_numbers_of_the_host_are_inputs() -> None:
    def function(x: torch.Tensor, scale: torch.Tensor, shift: float) -> torch.Tensor:
        return x * scale + shift * 2

    run, x = compiled(function), torch.randn(3).to(DEVICE)
    with torch.no_grad():
        for i in range(6):
            scale, shift = torch.tensor(i + 0.5), 0.25 * i + 1.5
            with Counted() as counted:
                made = run(x, scale, shift)
                rt.sync()
            # A float that has changed once counts as one that changes.
            assert counted.compiles == 0 or i < 2
            torch.testing.assert_close(made.cpu(), function(x.cpu(), scale, shift))


def test_a_constant_of_the_traced_code() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.tensor([1.0, 2.0, 3.0]).to(x.device) * torch.tensor(2.0, device=x.device)

    assert_agrees(function, torch.randn(3))

    def overwrite(x: torch.Tensor) -> torch.Tensor:
        x.copy_(torch.tensor([1.0, 2.0, 3.0]))
        return x * 2

    assert_agrees(overwrite, torch.randn(3))


def test_tensors_made_of_nothing() -> None:
    run = compiled(lambda n: torch.arange(n, device=DEVICE) + torch.zeros(n, device=DEVICE))
    for n in (3, 4, 3):
        assert run(n).tolist() == [*range(n)]


def test_checkpointing_recomputes_and_gives_the_same_gradients() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(6, 8).to(DEVICE), nn.Linear(8, 3).to(DEVICE)

    def block(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(F.gelu(first(x)), 0.4)

    def kept(x: torch.Tensor) -> torch.Tensor:
        return second(block(x)).square().sum()

    def recomputed(x: torch.Tensor) -> torch.Tensor:
        return second(checkpoint(block, x, use_reentrant=False)).square().sum()

    x = torch.randn(4, 6).to(DEVICE)
    gradients = []
    for function in (kept, compiled(kept), compiled(recomputed)):
        first.zero_grad()
        torch.manual_seed(5)
        function(x).backward()
        gradients.append(first.weight.grad.cpu())
    torch.testing.assert_close(gradients[1], gradients[0])
    torch.testing.assert_close(gradients[2], gradients[0])


@pytest.mark.parametrize("name", ["TRCOMP_EAGER", "TRCOMP_CHECK"])
def test_debugging_flags_run_operator_by_operator(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    run, x = compiled(lambda x: (x * 2).relu() + 1), torch.randn(3)
    with Counted() as counted:
        made = run(x.to(DEVICE))
    assert counted.recorded_nodes == 3
    torch.testing.assert_close(made.cpu(), (x * 2).relu() + 1)


def test_an_operator_that_cannot_be_compiled_is_named_with_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from trcomp.runtime.ops.registry import RULES

    def broken(*arguments: Any) -> Any:
        raise ValueError("no such form")

    monkeypatch.setitem(RULES["erfinv"].__dict__, "lower", broken)
    run = compiled(lambda x: torch.erfinv(x) + 1)
    made = run(torch.rand(3).to(DEVICE))
    with pytest.raises(ValueError, match="no such form") as raised:
        made.cpu()
    notes = "\n".join(raised.value.__notes__)
    assert "erfinv" in notes
    assert "test_compile_boundaries.py" in notes
    assert "torch.compiler.disable" in notes


def test_what_cannot_be_captured_is_recorded_by_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from trcomp.runtime.dispatch import Recorder

    record = Recorder._record

    def refuse(self: Any, args: Any) -> Any:
        from trcomp.runtime import ir

        if ir.is_apart() and self.rule.name == "erfinv":
            raise RuntimeError("not today")
        return record(self, args)

    monkeypatch.setattr(Recorder, "_record", refuse)
    run, x = compiled(lambda x: (torch.erfinv(x * 0.5) + 1) * x), torch.rand(3)
    for _ in range(3):
        with Counted() as counted:
            made = run(x.to(DEVICE))
        torch.testing.assert_close(made.cpu(), (torch.erfinv(x * 0.5) + 1) * x)
    assert counted.recorded_nodes == 3  # a region, the operator, a region
    assert "erfinv is recorded by itself" in capsys.readouterr().err


def test_a_model_on_the_cpu_is_computed_there() -> None:
    model, x = mlp(), torch.randn(4, 6)
    with Counted() as counted:
        made = compiled(model)(x)
        made.sum().backward()
    assert counted.recorded_nodes == 0
    torch.testing.assert_close(made, mlp()(x))


def test_a_compiled_loop_that_never_ends_a_step_is_computed_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from trcomp.runtime import overdue

    run, x = compiled(lambda x: torch.sin(x) + 1), torch.zeros(3).to(DEVICE)
    monkeypatch.setattr(overdue, "LIMIT", 8)
    with torch.no_grad(), Counted() as counted:
        for _ in range(40):
            x = run(x)
    assert counted.executions >= 3
    expected = torch.zeros(3)
    for _ in range(40):
        expected = torch.sin(expected) + 1
    torch.testing.assert_close(x.cpu(), expected)


def test_inference_mode_and_weights_changed_in_between() -> None:
    layer = nn.Linear(4, 2).to(DEVICE)
    run, x = compiled(layer), torch.randn(3, 4).to(DEVICE)
    with torch.inference_mode():
        before = run(x).cpu()
    with torch.no_grad():
        layer.weight.mul_(2)
        layer.bias.zero_()
        layer.bias.data = torch.ones(2).to(DEVICE)
    with torch.inference_mode():
        torch.testing.assert_close(run(x).cpu(), layer(x).cpu())
    assert not run(x).detach().cpu().equal(before)
