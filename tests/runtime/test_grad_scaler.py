"""Gradient scalers: a step that overflows is skipped on the device, unread; the scale adapts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import trcomp.runtime as rt
from trcomp.runtime.device import DEVICE
from trcomp.runtime.metrics import counters

pytestmark = pytest.mark.runtime
HALVES = [torch.bfloat16, torch.float16]


def ones(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(size, dtype=dtype, device=DEVICE)


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
