"""`torch.compile(backend="trcomp")`: what a script notices of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import trcomp.runtime as rt

pytestmark = [
    pytest.mark.runtime,
    # torch's own, as it traces.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]
DEVICE = "xla"
Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _from_nothing() -> Iterator[None]:
    torch._dynamo.reset()
    rt.sync()
    yield
    torch._dynamo.reset()


def compiled(function: Function, **options: Any) -> Function:
    made: Function = torch.compile(function, backend="trcomp", **options)
    return made


class Counted:
    """What was recorded, compiled and run within a `with`."""

    def __enter__(self) -> Counted:
        self._before = rt.metrics()
        return self

    def __exit__(self, *raised: Any) -> None:
        after = rt.metrics()
        for name in ("recorded_nodes", "compiles", "executions", "early_syncs"):
            setattr(self, name, after[name] - self._before[name])

    recorded_nodes: int
    compiles: int
    executions: int
    early_syncs: int


def assert_agrees(function: Function, *arguments: torch.Tensor, calls: int = 2) -> None:
    """The function does on the device, compiled, what it does on the CPU.

    Results, gradients and what becomes of its arguments are compared.
    """
    on_device = [a.detach().to(DEVICE).requires_grad_(a.requires_grad) for a in arguments]
    run = compiled(function)
    for _ in range(calls):
        expected, got = function(*arguments), run(*on_device)
        torch.testing.assert_close(_host(got), _host(expected))
        if any(a.requires_grad for a in arguments):
            _total(expected).backward()
            _total(got).backward()
            for argument, other in zip(arguments, on_device, strict=True):
                torch.testing.assert_close(_host(other.grad), argument.grad)
        torch.testing.assert_close(_host(on_device), list(arguments))
        rt.sync()


def _host(made: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.detach().cpu(), made)


def _total(made: Any) -> torch.Tensor:
    tensors = [t for t in torch.utils._pytree.tree_leaves(made) if t.requires_grad]
    return sum((t.square().sum() for t in tensors), torch.zeros(()).to(tensors[0].device))


NAMES = ["trcomp", "openxla", "openxla_eval", "aot_torchxla_trace_once", "torchxla_trace_once"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_the_backend(name: str) -> None:
    x = torch.randn(4).to(DEVICE).requires_grad_()
    with Counted() as counted:
        made = torch.compile(lambda x: (x * 2).relu() + x.exp(), backend=name)(x)
    assert counted.recorded_nodes == 1
    made.sum().backward()
    assert x.grad is not None


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


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
        _total(function(x, w)).backward()
        _total(run(x.to(DEVICE), other)).backward()
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
    assert "test_compile.py" in notes
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
