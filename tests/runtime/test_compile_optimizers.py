"""A compiled `optimizer.step`: one node a step, with counters on the host and schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import trcomp.runtime as rt

pytestmark = [
    pytest.mark.runtime,
    # torch's own, as it traces.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": partial(torch.optim.Adam, lr=0.01),
    "adam-amsgrad-one-by-one": partial(torch.optim.Adam, lr=0.01, amsgrad=True, foreach=False),
    "adamw-fused": partial(torch.optim.AdamW, lr=0.01, fused=True),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.5),
    "adagrad": partial(torch.optim.Adagrad, lr=0.1),
    "nadam": partial(torch.optim.NAdam, lr=0.01),
}


@pytest.fixture(autouse=True)
def _from_nothing() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


class Training:
    """A model, its optimizer and a schedule on one device."""

    def __init__(self, device: str, make: Callable[..., torch.optim.Optimizer]) -> None:
        self.model = model().to(device)
        self.optimizer = make(self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.device = device
        self.update: Callable[[], Any] = self.optimizer.step

    def step(self, inputs: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.model(inputs.to(self.device)).square().mean().backward()
        self.update()
        self.schedule.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_schedule_neither_syncs_nor_compiles(name: str) -> None:
    plain, other = Training("cpu", OPTIMIZERS[name]), Training("xla", OPTIMIZERS[name])
    other.update = torch.compile(other.optimizer.step, backend="trcomp")
    for i in range(7):
        inputs = torch.randn(8, 4)
        plain.step(inputs)
        before = rt.metrics()
        other.step(inputs)
        rt.sync()
        after = rt.metrics()
        assert after["early_syncs"] == before["early_syncs"]
        if i > 2:
            assert after["compiles"] == before["compiles"]
    assert after["fallbacks"] == before["fallbacks"]
    for mine, theirs in zip(other.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().cpu(), theirs.detach(), rtol=1e-4, atol=1e-5)
    again = Training("cpu", OPTIMIZERS[name]).optimizer
    again.load_state_dict(other.optimizer.state_dict())
    for parameter, state in zip(plain.model.parameters(), again.state.values(), strict=True):
        for key, value in plain.optimizer.state[parameter].items():
            torch.testing.assert_close(
                torch.as_tensor(state[key]).cpu(), torch.as_tensor(value), rtol=1e-4, atol=1e-5
            )


def test_clipping_and_the_step_in_one_region() -> None:
    made = []
    for device in ("cpu", "xla"):
        training = Training(device, OPTIMIZERS["adam"])

        def update(training: Training = training) -> torch.Tensor:
            norm = nn.utils.clip_grad_norm_(training.model.parameters(), 0.01)
            training.optimizer.step()
            return norm

        training.update = torch.compile(update, backend="trcomp") if device == "xla" else update
        torch.manual_seed(1)
        for _ in range(3):
            training.step(torch.randn(8, 4))
            rt.sync()
        made.append([p.detach().cpu() for p in training.model.parameters()])
    torch.testing.assert_close(made[1], made[0], rtol=1e-4, atol=1e-5)


def test_a_learning_rate_of_zero_and_of_one() -> None:
    training = Training("xla", OPTIMIZERS["sgd"])
    update = torch.compile(training.optimizer.step, backend="trcomp")
    weight = training.model[0].weight
    for rate in (0.5, 0.25, 0.0, 1.0, 0.125):
        training.optimizer.param_groups[0].update(lr=rate, momentum=0.0, weight_decay=0.0)
        weight.grad = torch.ones(6, 4).to("xla")
        before = weight.detach().cpu().clone()
        update()
        torch.testing.assert_close(before - weight.detach().cpu(), torch.full((6, 4), rate))
