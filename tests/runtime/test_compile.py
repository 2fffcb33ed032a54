"""`torch.compile(backend="trcomp")`: what a script notices of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trcomp.runtime as rt
from tests.runtime.compiled import (
    DEVICE,
    Counted,
    Function,
    assert_agrees,
    compiled,
    mlp,
    total,
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


NAMES = ["trcomp", "openxla", "openxla_eval", "aot_torchxla_trace_once", "torchxla_trace_once"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_the_backend(name: str) -> None:
    x = torch.randn(4).to(DEVICE).requires_grad_()
    with Counted() as counted:
        made = torch.compile(lambda x: (x * 2).relu() + x.exp(), backend=name)(x)
    assert counted.recorded_nodes == 1
    made.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("words", [{}, {"mode": "max-autotune"}, {"backend": "inductor"}])
def test_without_a_name_it_is_the_backend_of_what_is_on_the_device(words: dict[str, str]) -> None:
    x = torch.randn(4).to(DEVICE)
    with Counted() as counted:
        made = torch.compile(lambda x: (x * 2).relu() + torch.ones_like(x), **words)(x)
    assert counted.recorded_nodes == 1
    torch.testing.assert_close(made.cpu(), (x.cpu() * 2).relu() + 1)


def test_what_is_on_the_cpu_is_torchs_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    came = []

    def compile_fx(module: torch.fx.GraphModule, inputs: object, **options: object) -> object:
        came.append(module)
        return module.forward

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    assert torch.compile(lambda x: x + 1)(torch.ones(2)).tolist() == [2.0, 2.0]
    assert len(came) == 1


def test_inference_is_one_node_a_call() -> None:
    model = mlp().eval()
    inputs = torch.randn(4, 6)
    expected = model(inputs).detach()
    run = compiled(model.to(DEVICE))
    on_device = inputs.to(DEVICE)
    with torch.no_grad():
        made = run(on_device)
        rt.sync()
        with Counted() as counted:
            made = run(on_device)
            rt.sync()
    torch.testing.assert_close(made.cpu(), expected)
    assert counted.recorded_nodes == counted.executions == 1
    assert counted.compiles == 0


def training_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, forward: Function, step: Function
) -> Function:
    def run(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(forward(inputs), labels)
        loss.backward()
        step()
        return loss.detach()

    return run


def test_fifty_steps_are_one_executable_run_fifty_times() -> None:
    models = [mlp(), mlp().to(DEVICE)]
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in models]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.97) for o in optimizers]
    plain = training_step(models[0], optimizers[0], models[0], optimizers[0].step)
    one = training_step(models[1], optimizers[1], compiled(models[1]), compiled(optimizers[1].step))
    expected, losses = [], []
    for i in range(53):
        inputs, labels = torch.randn(8, 6), torch.randint(3, (8,))
        expected.append(plain(inputs, labels))
        batch = inputs.to(DEVICE), labels.to(DEVICE)
        with Counted() as counted:
            losses.append(one(*batch))
            rt.sync()
        for schedule in schedules:
            schedule.step()
        if i > 2:
            assert counted.executions == 1
            assert counted.compiles == counted.early_syncs == 0
            assert counted.recorded_nodes <= 10
    torch.testing.assert_close(torch.stack(losses).cpu(), torch.stack(expected))
    for mine, theirs in zip(models[1].buffers(), models[0].buffers(), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs)


def test_donates_as_a_recorded_step_does() -> None:
    donated = []
    for wrap in (compiled, lambda function: function):
        model = mlp().to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        one = training_step(model, optimizer, wrap(model), wrap(optimizer.step))
        batch = torch.randn(8, 6).to(DEVICE), torch.randint(3, (8,)).to(DEVICE)
        for _ in range(3):
            one(*batch)
            rt.sync()
        before = rt.metrics()["donated_buffers"]
        one(*batch)
        rt.sync()
        donated.append(rt.metrics()["donated_buffers"] - before)
    assert donated[0] == donated[1] > 0


def test_changed_shapes_are_new_graphs_with_the_right_results() -> None:
    model = mlp().eval()
    run = compiled(copy.deepcopy(model).to(DEVICE))
    with torch.no_grad():
        for batch in (4, 2, 5, 4, 1, 2):
            inputs = torch.randn(batch, 6)
            torch.testing.assert_close(run(inputs.to(DEVICE)).cpu(), model(inputs))
        with Counted() as counted:
            run(torch.randn(5, 6).to(DEVICE))
            rt.sync()
    assert counted.compiles == 0


def test_dynamic_shapes_train() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).view(x.shape[0] * 2, -1).softmax(-1) * x.shape[0]

    run = compiled(function, dynamic=True)
    for rows in (2, 3, 4):
        x, w = torch.randn(rows, 4), torch.randn(4, 6, requires_grad=True)
        other = w.detach().to(DEVICE).requires_grad_()
        total(function(x, w)).backward()
        total(run(x.to(DEVICE), other)).backward()
        torch.testing.assert_close(other.grad.cpu(), w.grad)


def test_arguments_changed_in_place() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        x[1].mul_(y)
        y.relu_()
        return x + y

    assert_agrees(function, torch.randn(3, 4), torch.randn(4))


def test_a_write_through_a_flattened_view_reaches_its_base() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten()
        flat.mul_(2)
        return flat.sum()

    assert_agrees(function, torch.randn(3, 4))


def test_views_of_arguments_are_views() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.t(), x[1:] * 2

    x = torch.randn(3, 4).to(DEVICE)
    transposed, _ = compiled(function)(x)
    x.zero_()
    assert transposed.cpu().equal(torch.zeros(4, 3))
    assert_agrees(function, torch.randn(3, 4))


def test_results_that_share_a_storage() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = x * 2
        return made, made[0], made.t()

    first, row, turned = compiled(function)(torch.randn(3, 4).to(DEVICE))
    row.zero_()
    assert first.cpu()[0].equal(torch.zeros(4))
    assert turned.cpu()[:, 0].equal(torch.zeros(4))


def test_arguments_in_one_storage() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x * 2

    base, other = torch.arange(6.0), torch.arange(6.0).to(DEVICE)
    expected = function(base[:3], base[3:])
    torch.testing.assert_close(compiled(function)(other[:3], other[3:]).cpu(), expected)
    torch.testing.assert_close(other.cpu(), base)


def test_walking_along_a_data_set_compiles_once() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu()

    data, w = torch.randn(20, 4), torch.randn(4, 3, requires_grad=True)
    run, held, weight = compiled(function), data.to(DEVICE), w.detach().to(DEVICE).requires_grad_()
    for i in range(5):
        rows = slice(i * 4, i * 4 + 4)
        with Counted() as counted:
            made = run(held[rows], weight)
            made.sum().backward()
            rt.sync()
        assert counted.compiles == (1 if i < 2 else 0)
        torch.testing.assert_close(made.detach().cpu(), function(data[rows], w).detach())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.embedding(tokens)), tokens)


def test_tied_weights_stay_tied() -> None:
    tokens = torch.randint(7, (5,))
    model, other = Tied(), Tied().to(DEVICE)
    for one, run, inputs in ((model, model, tokens), (other, compiled(other), tokens.to(DEVICE))):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.5)
        for _ in range(3):
            optimizer.zero_grad()
            run(inputs).backward()
            optimizer.step()
    assert other.head.weight is other.embedding.weight
    torch.testing.assert_close(other.head.weight.detach().cpu(), model.head.weight.detach())
