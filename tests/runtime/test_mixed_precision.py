"""Autocast regions and gradient scalers: dtypes by CUDA's lists, skipped steps, nothing read."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trcomp.runtime as rt
from trcomp.runtime.device import DEVICE
from trcomp.runtime.metrics import counters

pytestmark = pytest.mark.runtime
HALVES = [torch.bfloat16, torch.float16]
xla = torch.xla  # type: ignore[attr-defined]


def ones(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(size, dtype=dtype, device=DEVICE)


IN_HALF: dict[str, Callable[[], torch.Tensor]] = {
    "matmul": lambda: ones(2, 3) @ ones(3, 2),
    "bmm": lambda: torch.bmm(ones(1, 2, 3), ones(1, 3, 2)),
    "addmm": lambda: torch.addmm(ones(2), ones(2, 3), ones(3, 2)),
    "baddbmm": lambda: torch.baddbmm(ones(1, 2, 2), ones(1, 2, 3), ones(1, 3, 2)),
    "mv": lambda: torch.mv(ones(2, 3), ones(3)),
    "einsum": lambda: torch.einsum("ij,jk->ik", ones(2, 3), ones(3, 2)),
    "linear": lambda: F.linear(ones(2, 3), ones(4, 3), ones(4)),
    "conv1d": lambda: F.conv1d(ones(1, 2, 5), ones(3, 2, 2)),
    "conv2d": lambda: F.conv2d(ones(1, 2, 5, 5), ones(3, 2, 2, 2)),
    "conv_transpose2d": lambda: F.conv_transpose2d(ones(1, 2, 5, 5), ones(2, 3, 2, 2)),
    "prelu": lambda: F.prelu(ones(2, 3), ones(1)),
    "attention": lambda: F.scaled_dot_product_attention(*[ones(1, 1, 4, 4)] * 3),
    "lstm_cell": lambda: torch.nn.LSTMCell(3, 4).to(DEVICE)(ones(2, 3))[0],
}

IN_FULL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp,
    "log": torch.log,
    "rsqrt": torch.rsqrt,
    "pow": lambda h: h**2.5,
    "pow of a number": lambda h: 2.0**h,
    "softplus": F.softplus,
    "softmax": lambda h: h.softmax(-1),
    "log_softmax": lambda h: F.log_softmax(h, -1),
    "layer_norm": lambda h: F.layer_norm(h, (4,)),
    "group_norm": lambda h: F.group_norm(h, 2),
    "sum": torch.sum,
    "sum over dims": lambda h: h.sum(0),
    "prod": torch.prod,
    "cumsum": lambda h: h.cumsum(0),
    "norm": torch.linalg.vector_norm,
    "logsumexp": lambda h: h.logsumexp(0),
    "mse_loss": lambda h: F.mse_loss(h, h),
    "l1_loss": lambda h: F.l1_loss(h, h),
    "nll_loss": lambda h: F.nll_loss(h, torch.zeros(2, dtype=torch.long, device=DEVICE)),
    "cross_entropy": lambda h: F.cross_entropy(h, torch.zeros(2, dtype=torch.long, device=DEVICE)),
    "binary_cross_entropy_with_logits": lambda h: F.binary_cross_entropy_with_logits(h, h),
    "cosine_similarity": lambda h: F.cosine_similarity(h, h),
    "kl_div": lambda h: F.kl_div(h, h, reduction="sum"),
}

AS_THEY_ARE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "mul": lambda h: h * 2,
    "mean": torch.mean,
    "max": torch.max,
    "dropout": lambda h: F.dropout(h, 0.5),
    "max_pool2d": lambda h: F.max_pool2d(h.view(1, 1, 2, 4), 2),
}


@pytest.mark.parametrize("dtype", HALVES)
def test_products_and_convolutions_run_in_the_regions_dtype(dtype: torch.dtype) -> None:
    with torch.autocast("xla", dtype=dtype):
        assert {name: make().dtype for name, make in IN_HALF.items()} == dict.fromkeys(
            IN_HALF, dtype
        )


@pytest.mark.parametrize("dtype", HALVES)
def test_what_needs_range_runs_in_float32_and_the_rest_as_it_is(dtype: torch.dtype) -> None:
    half = ones(2, 4, dtype=dtype)
    with torch.autocast("xla", dtype=dtype):
        full = {name: f(half).dtype for name, f in IN_FULL.items()}
        same = {name: f(half).dtype for name, f in AS_THEY_ARE.items()}
    assert full == dict.fromkeys(IN_FULL, torch.float32)
    assert same == dict.fromkeys(AS_THEY_ARE, dtype)


def test_mixed_operands_take_the_widest_dtype() -> None:
    half, full = ones(3, dtype=torch.float16), ones(3)
    with torch.autocast("xla", dtype=torch.float16):
        assert torch.cat([half, full]).dtype == torch.float32
        assert torch.stack([half, half]).dtype == torch.float16
        assert torch.addcmul(half, half, full).dtype == torch.float32
        assert (half + full).dtype == torch.float32
        assert torch.dot(half, full).dtype == torch.float32
        place = (torch.tensor([0], device=DEVICE),)
        assert torch.index_put(full, place, half[:1]).dtype == torch.float32


def test_float64_and_integers_are_left_alone() -> None:
    double, whole = ones(2, 2, dtype=torch.float64), ones(2, 2, dtype=torch.int64)
    with torch.autocast("xla", dtype=torch.bfloat16):
        assert (double @ double).dtype == double.exp().dtype == torch.float64
        assert (whole @ whole).dtype == whole.sum().dtype == torch.int64
        assert torch.ones(2, 2).exp().dtype == torch.float32  # on the host


def test_regions_nest_and_can_be_switched_off() -> None:
    x = ones(2, 2)
    assert torch.autocast("xla").fast_dtype == torch.float16  # as cuda
    with torch.autocast("xla", dtype=torch.bfloat16):
        outer = x @ x
        with torch.autocast("xla", dtype=torch.float16):
            inner = x @ x
        with torch.autocast("xla", enabled=False):
            off = x @ x
        again = x @ x
        assert torch.is_autocast_enabled("xla")
    assert not torch.is_autocast_enabled("xla")
    assert [t.dtype for t in (outer, inner, off, again, x @ x)] == [
        torch.bfloat16,
        torch.float16,
        torch.float32,
        torch.bfloat16,
        torch.float32,
    ]


def test_a_region_can_be_a_decorator() -> None:
    @torch.autocast("xla", dtype=torch.bfloat16)
    def product(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    assert product(ones(2, 2)).dtype == torch.bfloat16


def test_a_dtype_that_is_no_half_is_refused_as_on_cuda() -> None:
    with pytest.warns(UserWarning, match="not supported"):
        region = torch.autocast("xla", dtype=torch.float32)
    with region:
        assert not torch.is_autocast_enabled("xla")


def test_binary_cross_entropy_is_refused_as_on_cuda() -> None:
    with (
        torch.autocast("xla", dtype=torch.float16),
        pytest.raises(RuntimeError, match="unsafe to autocast"),
    ):
        F.binary_cross_entropy(ones(2), ones(2))


@pytest.mark.parametrize("cache", [True, False])
def test_a_weight_changed_inside_a_region_is_read_anew(cache: bool) -> None:
    weight = torch.nn.Parameter(ones(2, 2))
    with torch.autocast("xla", dtype=torch.bfloat16, cache_enabled=cache):
        before = F.linear(ones(1, 2), weight)
        with torch.no_grad():
            weight.mul_(3)
        after = F.linear(ones(1, 2), weight)
    assert (before.tolist(), after.tolist()) == ([[2, 2]], [[6, 6]])


@pytest.mark.parametrize("dtype", HALVES)
def test_training_in_a_region_follows_the_cpu(dtype: torch.dtype) -> None:
    runs = []
    for device in ("cpu", "xla"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv1d(2, 8, 3, padding=1),
            torch.nn.BatchNorm1d(8),
            torch.nn.GELU(),
            torch.nn.Flatten(),
            torch.nn.LayerNorm(32),
            torch.nn.Linear(32, 3),
        ).to(device)
        x, y = torch.randn(6, 2, 4).to(device), torch.tensor([0, 1, 2, 0, 1, 2]).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        losses = []
        for _ in range(6):
            optimizer.zero_grad()
            with torch.autocast(device, dtype=dtype):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            rt.sync()
            losses.append(loss.item())
        assert all(p.grad is not None and p.grad.dtype == p.dtype for p in model.parameters())
        runs.append(losses)
    assert runs[1] == pytest.approx(runs[0], rel=0.03)
    assert runs[1][-1] < runs[1][0]


class Squared(torch.autograd.Function):
    """Records the dtypes it meets."""

    seen: list[Any] = []  # noqa: RUF012

    @staticmethod
    @torch.amp.custom_fwd(device_type="xla", cast_inputs=torch.float32)
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        Squared.seen += [x.dtype, torch.is_autocast_enabled("xla")]
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    @torch.amp.custom_bwd(device_type="xla")
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        Squared.seen += [grad.dtype, torch.is_autocast_enabled("xla")]
        return grad @ x.t() + x.t() @ grad


def test_custom_functions_cast_their_inputs_and_run_backward_likewise() -> None:
    Squared.seen.clear()
    x = ones(2, 2, dtype=torch.bfloat16).requires_grad_()
    with torch.autocast("xla", dtype=torch.bfloat16):
        made = Squared.apply(x)
    made.sum().backward()
    assert made.dtype == torch.float32
    assert Squared.seen == [torch.float32, False, torch.float32, False]
    assert x.grad is not None and x.grad.tolist() == [[4, 4], [4, 4]]


def test_a_checkpoint_recomputes_in_the_regions_dtype() -> None:
    layer = torch.nn.Linear(3, 3).to(DEVICE)
    with torch.autocast("xla", dtype=torch.bfloat16):
        made = torch.utils.checkpoint.checkpoint(layer, ones(2, 3), use_reentrant=False)
    assert made.dtype == torch.bfloat16
    made.sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.dtype == torch.float32


# Gradient scalers.


def _scaler(**options: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("xla", **{"init_scale": 2.0**10, "growth_interval": 3} | options)


MakeOptimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
UNREAD: dict[str, MakeOptimizer] = {
    "SGD": lambda w: torch.optim.SGD(w, lr=0.1),
    "SGD with momentum": lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda w: torch.optim.Adam(w, lr=0.1, weight_decay=0.1),
    "AdamW": lambda w: torch.optim.AdamW(w, lr=0.1, amsgrad=True),
    "AdamW in groups": lambda w: torch.optim.AdamW(
        [{"params": w[:1], "lr": 0.2}, {"params": w[1:], "weight_decay": 0}], lr=0.1
    ),
    "SGD fused": lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9, fused=True),
    "AdamW fused": lambda w: torch.optim.AdamW(w, lr=0.1, fused=True),
}
READ: dict[str, MakeOptimizer] = {
    "AdamW foreach": lambda w: torch.optim.AdamW(w, lr=0.1, foreach=True),
    "Adam in a loop": lambda w: torch.optim.Adam(w, lr=0.1, foreach=False),
    "RMSprop": lambda w: torch.optim.RMSprop(w, lr=0.1),
}
OVERFLOWS = [False, True, False, False, False, True, False]


def _scaled_run(device: str, make: MakeOptimizer, *, scaled: bool = True) -> list[Any]:
    """Weights and scale after each of some steps, of which two overflow; and the last state."""
    weights = [torch.nn.Parameter(torch.linspace(-1, 1, n).to(device)) for n in (3, 4)]
    optimizer = make(weights)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10, growth_interval=2, enabled=scaled)
    history: list[Any] = []
    for i, overflow in enumerate(OVERFLOWS):
        optimizer.zero_grad()
        loss = sum((w * (i + 1)).square().sum() for w in weights)
        assert isinstance(loss, torch.Tensor)
        if overflow:
            loss = loss * float("inf")
        if scaled:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        elif not overflow:
            loss.backward()
            optimizer.step()
        rt.sync()
        history.append([w.detach().clone() for w in weights])
        if scaled and device == "cpu":
            history[-1].append(scaler.get_scale())
        elif scaled:
            history[-1].append(scaler._scale.clone())  # type: ignore[union-attr]
    return history


def _plain(history: list[Any]) -> list[Any]:
    return [[t.tolist() if isinstance(t, torch.Tensor) else t for t in row] for row in history]


@pytest.mark.parametrize("name", [*UNREAD, *READ])
def test_a_scaler_skips_what_overflows_and_adapts_as_on_the_cpu(name: str) -> None:
    make = (UNREAD | READ)[name]
    expected = _plain(_scaled_run("cpu", make))
    before = counters.early_syncs
    history = _scaled_run("xla", make)
    reads = counters.early_syncs - before
    for made, due in zip(_plain(history), expected, strict=True):
        assert made[0] == pytest.approx(due[0], rel=1e-4, abs=1e-5)
        assert made[1] == pytest.approx(due[1], rel=1e-4, abs=1e-5)
        assert made[2] == due[2]
    assert reads == (0 if name in UNREAD else len(OVERFLOWS))
    assert [row[2] for row in expected][:2] == [1024, 512]


@pytest.mark.parametrize("name", ["SGD with momentum", "AdamW"])
def test_the_steps_that_a_scaler_takes_are_those_without_one(name: str) -> None:
    scaled = [row[:2] for row in _scaled_run("xla", UNREAD[name])]
    plain = _scaled_run("xla", UNREAD[name], scaled=False)
    for made, due in zip(scaled, plain, strict=True):
        for left, right in zip(made, due, strict=True):
            torch.testing.assert_close(left.cpu(), right.cpu())


def test_a_scaled_step_compiles_once() -> None:
    weight = torch.nn.Parameter(ones(4))
    optimizer, scaler = torch.optim.AdamW([weight], lr=0.1), _scaler()
    warm = 0
    for i in range(9):
        optimizer.zero_grad()
        scaler.scale((weight * (1.0 if i % 4 else float("inf"))).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        rt.sync()
        warm = counters.compiles if i == 2 else warm
    assert counters.compiles == warm


def test_unscaled_gradients_are_clipped_without_a_read() -> None:
    weight = torch.nn.Parameter(ones(4))
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), _scaler()
    rt.sync()
    before = counters.early_syncs
    scaler.scale((weight * 3).sum()).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_([weight], 1.0)
    scaler.step(optimizer)
    scaler.update()
    rt.sync()
    assert counters.early_syncs == before
    assert norm.item() == pytest.approx(6.0)
    assert weight.tolist() == pytest.approx([0.5] * 4)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.scale(weight.sum()).backward()
        scaler.unscale_(optimizer)
        scaler.unscale_(optimizer)


@pytest.mark.parametrize("fused", [True, None])
def test_a_step_leaves_the_gradients_unscaled(fused: bool | None) -> None:
    weight = torch.nn.Parameter(ones(3))
    optimizer, scaler = torch.optim.AdamW([weight], fused=fused), _scaler()
    scaler.scale((weight * 3).sum()).backward()
    scaler.step(optimizer)
    assert weight.grad is not None and weight.grad.tolist() == [3, 3, 3]


def test_a_scaler_stays_off_and_its_state_is_saved() -> None:
    weight = torch.nn.Parameter(ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    off = _scaler(enabled=False)
    loss = weight.sum()
    assert off.scale(loss) is loss
    loss.backward()
    off.step(optimizer)
    assert weight.tolist() == [0.5, 0.5]
    scaler = _scaler()
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    restored = _scaler()
    restored.load_state_dict(scaler.state_dict())
    assert restored.state_dict() == scaler.state_dict()
    scaler.update(64.0)
    assert scaler.get_scale() == 64.0


def test_scaling_leaves_the_loss_and_scales_several_outputs() -> None:
    loss, scaler = ones(1), _scaler(init_scale=8.0)
    made = scaler.scale([loss, (loss * 2,)])  # type: ignore[list-item]
    assert [made[0].item(), made[1][0].item(), loss.item()] == [8, 16, 1]


def test_an_optimizer_that_a_scaler_made_fused_is_resumed() -> None:
    def make() -> tuple[torch.nn.Parameter, torch.optim.Optimizer, torch.amp.GradScaler]:
        weight = torch.nn.Parameter(ones(3))
        return weight, torch.optim.AdamW([weight], lr=0.1), _scaler()

    def steps(weight: Any, optimizer: Any, scaler: Any) -> list[float]:
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(weight.square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            rt.sync()
        return weight.tolist()  # type: ignore[no-any-return]

    one = make()
    steps(*one)
    saved = copy.deepcopy([one[0].detach(), one[1].state_dict(), one[2].state_dict()])
    straight = steps(*one)
    two = make()
    with torch.no_grad():
        two[0].copy_(saved[0])
    two[1].load_state_dict(saved[1])
    two[2].load_state_dict(saved[2])
    assert steps(*two) == straight


def test_steps_taken_before_the_scaler_came_still_count() -> None:
    runs = []
    for scaled in (True, False):
        weight = torch.nn.Parameter(ones(3))
        optimizer = torch.optim.Adam([weight], lr=0.1)
        scaler = _scaler(enabled=False)
        for i in range(4):
            if i == 2:
                scaler = _scaler(enabled=scaled)
            optimizer.zero_grad()
            scaler.scale(weight.square().sum() * (i + 1)).backward()
            scaler.step(optimizer)
            scaler.update()
        runs.append(weight.tolist())
    assert runs[0] == pytest.approx(runs[1])


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_of_half_parameters_overflow_in_their_own_dtype(dtype: torch.dtype) -> None:
    grads = [ones(2, dtype=dtype), ones(2, 2).t()]
    found, inverse = torch.zeros((), device=DEVICE), torch.full((), 0.25, device=DEVICE)
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
    assert ([g.flatten().tolist() for g in grads], found.item()) == (
        [[0.25] * 2, [0.25] * 4],
        0,
    )
    torch._amp_foreach_non_finite_check_and_unscale_([grads[0] / 0], found, inverse)
    assert found.item() == 1
    torch._amp_foreach_non_finite_check_and_unscale_([], found, inverse)
    assert found.item() == 1
