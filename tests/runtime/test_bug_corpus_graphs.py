"""What lazy tensors are known to get wrong about graphs: keys, donation, recompiles, steps.

The cases come from public reports against PyTorch/XLA and its users' projects; those about random
draws, layers, indexing and recompiles are tested with their subjects in the files beside this one.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import trcomp.runtime as rt
from tests.runtime.agreement import assert_alike, on_device
from trcomp.runtime.device import DEVICE
from trcomp.runtime.graph import build
from trcomp.runtime.ir import restore_pending, take_pending
from trcomp.runtime.metrics import counters

pytestmark = pytest.mark.runtime


@pytest.fixture(autouse=True)
def settled() -> None:
    rt.sync(wait=True)


# Graphs, keys, donation.


def test_a_graph_is_the_same_text_in_every_process() -> None:
    script = """
import torch, trcomp.runtime as rt
from trcomp.runtime.graph import build
from trcomp.runtime.ir import take_pending
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5)).to("xla")
optimizer = torch.optim.Adam(model.parameters())
x = torch.ones(2, 3).to("xla")
rt.sync()
model(x).sum().backward()
optimizer.step()
print(build(take_pending(), donate=True))
"""
    texts = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script],
            check=True,
            capture_output=True,
            text=True,
            env={"PYTHONHASHSEED": seed, "PATH": ""},
        ).stdout
        for seed in ("1", "2")
    ]
    assert texts[0] == texts[1]
    assert len(texts[0].splitlines()) > 10


def _key(make: Callable[[], Any]) -> Any:
    made = make()
    pending = take_pending()
    key = build(pending, donate=False).key
    restore_pending(pending)
    rt.sync()
    del made
    return key


def test_graphs_that_differ_have_different_keys_and_equal_ones_the_same() -> None:
    x, y = torch.ones(3, device=DEVICE), torch.ones(3, device=DEVICE)
    flat, wide = torch.ones(6, device=DEVICE), torch.ones(2, 3, device=DEVICE)
    rt.sync()
    makes: list[Callable[[], Any]] = [
        lambda: x * y + x,
        lambda: x * y + y,
        lambda: x + y,
        lambda: (x + y, y + x),
        lambda: x + x,
        lambda: x + 1,
        lambda: x + 1.0,
        lambda: flat[1:4] + 1.0,
        lambda: flat[1:3] + 1.0,
        lambda: flat[::2] + 1.0,
        lambda: wide.sum(0),
        lambda: wide.sum(1),
        lambda: wide.sum(0, keepdim=True),
        lambda: wide.softmax(0),
        lambda: wide.softmax(1),
        lambda: wide.double(),
        lambda: wide.half(),
    ]
    keys = [_key(make) for make in makes]
    assert len(set(keys)) == len(keys)
    assert [_key(make) for make in makes] == keys


def test_a_save_in_the_middle_of_a_step_takes_nothing_from_the_next(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for i in range(4):
        loss = model(torch.ones(2, 3, device=DEVICE)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if i == 2:
            torch.save(model.state_dict(), tmp_path / "middle.pt")
            torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
        optimizer.step()
        rt.sync()
    assert loss.isfinite().item()
    saved = torch.load(tmp_path / "middle.pt", weights_only=True)
    assert saved["weight"].tolist() != model.weight.tolist()


def test_the_result_of_a_step_is_not_taken_by_the_next() -> None:
    x = torch.zeros(100, device=DEVICE)
    kept = []
    for _ in range(4):
        x = x + 1
        rt.sync()
        kept.append(x)
    assert [t[0].item() for t in kept] == [1, 2, 3, 4]
    y = kept[-1]
    y.add_(1)
    rt.sync()
    z = y * 1
    del y
    rt.sync()
    assert z[0].item() == 5


def test_a_batch_of_another_size_compiles_once_more() -> None:
    layer = torch.nn.Linear(3, 2).to(DEVICE)
    compiles = []
    for size in (4, 4, 4, 2, 4, 2):
        before = counters.compiles
        layer(torch.ones(size, 3).to(DEVICE)).sum().backward()
        rt.sync()
        layer.zero_grad()
        rt.sync()
        compiles.append(counters.compiles - before)
    assert compiles == [1, 0, 0, 1, 0, 0]


@pytest.mark.parametrize("capturable", [False, True])
def test_adams_step_count_stays_where_torch_keeps_it(capturable: bool) -> None:
    weight = torch.nn.Parameter(torch.ones(2, device=DEVICE))
    optimizer = torch.optim.Adam([weight], capturable=capturable)
    where = "xla" if capturable else "cpu"
    for _ in range(2):
        weight.square().sum().backward()
        optimizer.step()
        assert optimizer.state[weight]["step"].device.type == where
        optimizer.load_state_dict(optimizer.state_dict())
        assert optimizer.state[weight]["step"].device.type == where


def test_micro_batches_without_a_step_mark_are_one_graph() -> None:
    layer = torch.nn.Linear(3, 1).to(DEVICE)
    rt.sync()
    before = counters.executions
    for i in range(20):
        layer(torch.full((2, 3), float(i), device=DEVICE)).sum().backward()
    assert counters.executions == before
    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [[2.0 * sum(range(20))] * 3]
    assert counters.executions == before + 1


# Clipping.


@pytest.mark.parametrize("norm_type", [1.0, 2, 3.5, float("inf"), "inf"])
@pytest.mark.parametrize("foreach", [True, False])
def test_gradients_are_clipped_by_every_norm_without_a_read(
    norm_type: float, foreach: bool
) -> None:
    def clip(*weights: torch.Tensor) -> Any:
        for weight in weights:
            weight.grad = weight.detach() * 3
        total = torch.nn.utils.clip_grad_norm_(
            weights, 0.5, float(norm_type), error_if_nonfinite=False, foreach=foreach
        )
        return total, [weight.grad for weight in weights]

    weights = [torch.linspace(-1, 2, n) for n in (3, 5)]
    moved = [on_device(w) for w in weights]
    rt.sync()
    before = counters.early_syncs
    made = clip(*moved)
    assert counters.early_syncs == before
    assert_alike(made, clip(*weights))


def test_a_norm_that_is_not_finite_is_an_error_when_asked_for() -> None:
    weight = torch.nn.Parameter(torch.ones(2, device=DEVICE))
    weight.grad = torch.full_like(weight, float("nan"))
    with pytest.raises(RuntimeError, match="non-finite"):
        torch.nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)


# Steps.


def test_the_loss_that_is_logged_is_the_steps_own() -> None:
    weight = torch.nn.Parameter(torch.tensor([4.0], device=DEVICE))
    optimizer = torch.optim.SGD([weight], lr=0.25)
    logged = []
    for _ in range(3):
        loss = weight.square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logged.append(loss.detach())
        rt.sync()
    assert [entry.item() for entry in logged] == [16, 4, 1]
