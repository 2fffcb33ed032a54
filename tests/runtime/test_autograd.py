"""Beyond one backward pass: derivatives of derivatives, hooks, custom functions, errors inside."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trcomp.runtime as rt
from tests.runtime.agreement import assert_agrees, assert_alike, on_device
from trcomp.runtime import dispatch
from trcomp.runtime.device import DEVICE
from trcomp.runtime.metrics import counters

pytestmark = pytest.mark.runtime


def sample(*size: int) -> torch.Tensor:
    return torch.rand(size, generator=torch.Generator().manual_seed(0)) + 0.5


def twice(f: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """The gradient of the squared gradient."""

    def call(*leaves: torch.Tensor) -> Any:
        leaves = tuple(leaf.detach().requires_grad_() for leaf in leaves)
        first = torch.autograd.grad(f(*leaves).sum(), leaves, create_graph=True)
        penalty = sum((g.square().sum() for g in first), torch.zeros((), device=leaves[0].device))
        return first, torch.autograd.grad(penalty, leaves)

    return call


SMOOTH: dict[str, tuple[Callable[..., torch.Tensor], list[tuple[int, ...]]]] = {
    "mlp": (lambda x, w, v: torch.tanh(x @ w) @ v, [(2, 3), (3, 4), (4, 1)]),
    "gelu": (lambda x: F.gelu(x), [(4,)]),
    "softmax": (lambda x: x.softmax(-1) * x, [(2, 3)]),
    "layer_norm": (lambda x, w: F.layer_norm(x, (4,), w) ** 3, [(2, 4), (4,)]),
    "conv": (lambda x, w: F.conv1d(x, w).sigmoid(), [(1, 2, 5), (3, 2, 2)]),
    "pooling": (lambda x: F.avg_pool1d(x, 2) ** 2 + F.max_pool1d(x, 2) ** 2, [(1, 2, 4)]),
    "cross_entropy": (
        lambda x: F.cross_entropy(x, torch.tensor([0, 2], device=x.device)),
        [(2, 3)],
    ),
    "views": (lambda x: (x.t()[1:].reshape(-1) ** 3)[::2], [(3, 4)]),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_of_gradients(name: str) -> None:
    function, sizes = SMOOTH[name]
    assert_agrees(twice(function), *(sample(*size) for size in sizes))


def test_finite_differences_agree_to_the_second_order() -> None:
    x = sample(2, 3).double().to(DEVICE).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: (t.sin() * t).cumsum(1), (x,))
    assert torch.autograd.gradgradcheck(lambda t: (t.exp() / (1 + t)).sum(), (x,))


def test_a_gradient_penalty_trains_as_on_the_cpu() -> None:
    losses = []
    for device in ("cpu", "xla"):
        torch.manual_seed(0)
        critic = torch.nn.Sequential(
            torch.nn.Linear(3, 8), torch.nn.LeakyReLU(0.2), torch.nn.Linear(8, 1)
        ).to(device)
        optimizer = torch.optim.Adam(critic.parameters(), lr=0.01)
        x = torch.randn(4, 3).to(device)
        run = []
        for _ in range(4):
            point = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(critic(point).sum(), point, create_graph=True)
            loss = (slope.norm(dim=1) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rt.sync()
            run.append(loss.item())
        losses.append(run)
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_hooks_of_tensors_see_and_change_gradients() -> None:
    def run(x: torch.Tensor) -> Any:
        seen = []
        x = x.detach().requires_grad_()
        x.register_hook(lambda g: g * 2)
        middle = x * 3
        middle.register_hook(lambda g: seen.append(g))
        middle.retain_grad()
        handle = middle.register_hook(lambda g: g * 100)
        handle.remove()
        node = middle.sin()
        node.grad_fn.register_hook(lambda into, out: seen.append(into[0]))  # type: ignore[union-attr]
        node.grad_fn.register_prehook(lambda out: (out[0] + 1,))  # type: ignore[union-attr]
        node.sum().backward()
        return x.grad, middle.grad, seen

    assert_agrees(run, sample(3))


def test_hooks_of_modules_run_in_torchs_order() -> None:
    orders = []
    for device in ("cpu", DEVICE):
        order: list[Any] = []
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()).to(device)

        def log(name: str, order: list[Any] = order) -> Callable[..., None]:
            return lambda *args: order.append(name)

        for i, module in enumerate(model):
            module.register_forward_pre_hook(log(f"before {i}"))
            module.register_forward_hook(log(f"after {i}"))
            module.register_full_backward_pre_hook(log(f"backward before {i}"))
            module.register_full_backward_hook(log(f"backward {i}"))
        model[0].weight.register_post_accumulate_grad_hook(log("accumulated"))
        model(torch.ones(1, 3, device=device, requires_grad=True)).sum().backward()
        orders.append(order)
    assert orders[0] == orders[1]
    assert "accumulated" in orders[1]


def test_an_optimizer_can_step_inside_the_backward_pass() -> None:
    ends = []
    for device in ("cpu", "xla"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)).to(device)
        optimizers = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}

        def step(
            p: torch.Tensor, optimizers: dict[Any, torch.optim.Optimizer] = optimizers
        ) -> None:
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            model(torch.ones(2, 3, device=device)).square().sum().backward()
            rt.sync()
        assert all(p.grad is None for p in model.parameters())
        ends.append([p.detach().cpu() for p in model.parameters()])
    assert_alike(ends[1], ends[0])


class Clamped(torch.autograd.Function):
    """A straight-through estimator with a saved tensor, a saved number and two outputs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, low: float) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.low = low
        ctx.save_for_backward(x)
        small = x < low
        ctx.mark_non_differentiable(small)
        return x.clamp(min=low), small

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad * torch.where(x < ctx.low, 0.5, 1.0), None


class AddedInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.add_(1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 3


def test_custom_functions() -> None:
    def run(x: torch.Tensor) -> Any:
        made, small = Clamped.apply(x, 0.9)
        return made * 2, small, AddedInPlace.apply(x * 1)

    assert_agrees(run, sample(6).requires_grad_())


def test_no_grad_and_inference_mode() -> None:
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    with torch.no_grad():
        assert not (x * 2).requires_grad
        with torch.enable_grad():
            assert (x * 2).requires_grad
    with torch.inference_mode():
        made = x * 2
        made.add_(1)
        made[0] = 0.0
        logits = torch.nn.Linear(3, 2).to(DEVICE)(made)
    assert made.is_inference() and made.tolist() == [0, 3, 3]
    assert logits.isfinite().all().item()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        x * made
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        x.add_(1)


def test_a_graph_is_kept_when_asked_and_freed_when_not() -> None:
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    y = x.exp().sum()
    y.backward(retain_graph=True)
    rt.sync()
    y.backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), 2 * x.detach().exp().cpu())
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_a_value_saved_for_backward_and_then_changed_is_an_error() -> None:
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_gradients_accumulate_to_those_of_the_big_batch() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2).to(DEVICE)
    x = torch.randn(8, 4).to(DEVICE)
    model(x).square().mean().backward()
    whole = [p.grad.clone() for p in model.parameters()]  # type: ignore[union-attr]
    model.zero_grad()
    for part in x.chunk(4):
        (model(part).square().mean() / 4).backward()
    assert_alike([p.grad for p in model.parameters()], [g.cpu() for g in whole])


def test_saved_tensors_can_wait_on_the_host() -> None:
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        y = (x * 2).exp().sum()
    y.backward()
    torch.testing.assert_close(x.grad.cpu(), 2 * (2 * x.detach()).exp().cpu())  # type: ignore[union-attr]


def test_anomaly_mode_names_the_line_of_the_script() -> None:
    x = torch.zeros(2, device=DEVICE, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught, torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("always")
        root = x.sqrt()  # this line
        with pytest.raises(RuntimeError, match=r"SqrtBackward0.*nan"):
            (root * 0).sum().backward()
    assert any(
        "root = x.sqrt()  # this line" in str(w.message) and __file__ in str(w.message)
        for w in caught
    )


class Failure(Exception):
    pass


def _fail(*args: Any) -> Any:
    raise Failure("mine") from KeyError("why")


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    backward = staticmethod(_fail)


def _module_hook(x: torch.Tensor) -> torch.Tensor:
    layer = torch.nn.Linear(3, 3).to(DEVICE)
    layer.register_full_backward_hook(_fail)
    made: torch.Tensor = layer(x)
    return made


def _hooked(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    y.register_hook(_fail)
    return y


def _unpacked(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, _fail):
        return x.sin()


def _accumulated(x: torch.Tensor) -> torch.Tensor:
    x.register_post_accumulate_grad_hook(_fail)
    return x * 2


RAISING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "custom function": lambda x: Failing.apply(x),
    "tensor hook": _hooked,
    "module hook": _module_hook,
    "saved tensor hook": _unpacked,
    "accumulation hook": _accumulated,
}


@pytest.mark.parametrize("name", RAISING)
def test_what_a_hook_raises_reaches_the_script_with_its_traceback(name: str) -> None:
    made = RAISING[name](torch.ones(3, device=DEVICE, requires_grad=True))
    with pytest.raises(Failure, match="mine") as caught:
        made.sum().backward()
    assert isinstance(caught.value.__cause__, KeyError)
    assert "_fail" in "".join(traceback.format_tb(caught.value.__traceback__))
    # And the runtime goes on.
    y = torch.ones(2, device=DEVICE, requires_grad=True)
    (y * 3).sum().backward()
    assert y.grad is not None and y.grad.tolist() == [3, 3]


def test_what_is_raised_in_a_backward_pass_within_another_reaches_the_script() -> None:
    x = torch.ones(3, device=DEVICE, requires_grad=True)

    def layer(t: torch.Tensor) -> torch.Tensor:
        return _hooked(t) if torch.is_grad_enabled() else t.sin()

    made = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=True)
    with pytest.raises(Failure, match="mine"):
        made.sum().backward()


def test_an_interrupt_in_the_middle_of_backward_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*args: Any) -> Any:
        raise KeyboardInterrupt

    x = torch.ones(3, device=DEVICE, requires_grad=True)
    y = x.sin().exp().sum()
    with monkeypatch.context() as patch:
        patch.setattr(dispatch, "add_node", interrupted)
        with pytest.raises(KeyboardInterrupt):
            y.backward()


def test_backward_needs_no_read() -> None:
    x = on_device(sample(3)).requires_grad_()
    rt.sync()
    before = counters.early_syncs
    y = (x * 2).exp().sum()
    y.backward()
    torch.autograd.grad((x.sin()).sum(), x)
    assert counters.early_syncs == before
