"""torch_xla.amp: autocast, gradient scaling and optimizers that skip a step without a read."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

import trcomp.compat
import trcomp.runtime as rt

pytestmark = pytest.mark.runtime


@pytest.fixture(scope="module")
def amp() -> Any:
    trcomp.compat.install()
    return importlib.import_module("torch_xla.amp")


def made(optimizer_class: Any, device: str, **words: Any) -> tuple[torch.Tensor, Any]:
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0], device=device))
    return parameter, optimizer_class([parameter], lr=0.1, **words)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("SGD", {"momentum": 0.9, "nesterov": True}),
        ("Adam", {"amsgrad": True}),
        ("AdamW", {"weight_decay": 0.1}),
    ],
)
def test_a_step_that_overflowed_is_skipped_unread(amp: Any, name: str, words: Any) -> None:
    syncfree = importlib.import_module("torch_xla.amp.syncfree")
    ours, optimizer = made(getattr(syncfree, name), "xla", **words)
    theirs, reference = made(getattr(torch.optim, name), "cpu", **words)
    early = rt.metrics()["early_syncs"]
    for step, overflowed in enumerate([0.0, 1.0, 0.0, None]):
        ours.grad = torch.full((3,), step + 1.0, device="xla")
        theirs.grad = torch.full((3,), step + 1.0)
        found = None if overflowed is None else torch.tensor(overflowed, device="xla")
        optimizer.step(found_inf=found)
        if not overflowed:
            reference.step()
        rt.sync()
    assert rt.metrics()["early_syncs"] == early
    torch.testing.assert_close(ours.detach().cpu(), theirs.detach())
    with pytest.raises(ValueError, match="found_inf"):
        optimizer.step(found_inf=torch.zeros(1, device="xla"))
    assert set(optimizer.state_dict()) == set(reference.state_dict())


def scaled_losses(scaler: Any, optimizer_class: Any) -> tuple[list[float], float, int]:
    """Five steps whose second overflows: weights' sums, the last scale, early syncs."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1).to("xla")
    optimizer = optimizer_class(model.parameters(), lr=0.01)
    early, sums = rt.metrics()["early_syncs"], []
    for step in range(5):
        optimizer.zero_grad()
        factor = torch.tensor(float("inf") if step == 1 else 1.0, device="xla")
        loss = model(torch.ones(2, 4, device="xla")).square().mean() * factor
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        rt.sync()
        sums.append(model.weight.detach().sum())
    rt.sync()
    early = rt.metrics()["early_syncs"] - early
    return [value.item() for value in sums], scaler.get_scale(), early


def test_the_scaler_skips_and_halves_without_a_read(amp: Any) -> None:
    syncfree = importlib.import_module("torch_xla.amp.syncfree")
    expected, scale, _ = scaled_losses(torch.amp.GradScaler("xla", 8.0), torch.optim.SGD)
    assert scale == 4.0
    assert expected[0] == expected[1] != expected[2]
    for scaler, optimizer_class in (
        (amp.GradScaler(8.0), torch.optim.SGD),
        (amp.GradScaler(8.0), syncfree.SGD),
        (torch.amp.GradScaler("xla", 8.0), syncfree.SGD),
        (amp.GradScaler(8.0, use_zero_grad=True), torch.optim.SGD),
    ):
        sums, got_scale, early = scaled_losses(scaler, optimizer_class)
        assert sums == pytest.approx(expected, rel=1e-6)
        assert (got_scale, early) == (4.0, 0)


def test_zeros_for_gradients_let_any_optimizer_step_without_a_read(amp: Any) -> None:
    sums, scale, early = scaled_losses(amp.GradScaler(8.0, use_zero_grad=True), torch.optim.Rprop)
    assert scale == 4.0 and early == 0
    assert all(abs(value) < 100 for value in sums)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_autocast_runs_products_in_half_precision(amp: Any, dtype: torch.dtype | None) -> None:
    model, x = torch.nn.Linear(3, 2).to("xla"), torch.ones(2, 3, device="xla")
    with amp.autocast(torch.device("xla"), dtype=dtype):
        result = model(x)
        assert result.dtype is (dtype or torch.bfloat16)
        assert result.softmax(-1).dtype is torch.float32
    with amp.autocast("xla:0", enabled=False):
        assert model(x).dtype is torch.float32
