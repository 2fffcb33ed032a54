"""A training loop is one graph from its first step on: optimizers have their state before it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

import trcomp.runtime as rt
from trcomp.runtime import executables
from trcomp.runtime.device import DEVICE
from trcomp.runtime.metrics import counters

pytestmark = pytest.mark.runtime

optim = torch.optim
Make = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
MAKES: dict[str, Make] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "SGD with nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: optim.Adam(p, lr=0.1),
    "AdamW, amsgrad": lambda p: optim.AdamW(p, lr=0.1, amsgrad=True),
    "AdamW, fused": lambda p: optim.AdamW(p, lr=0.1, fused=True),
    "AdamW, for loop": lambda p: optim.AdamW(p, lr=0.1, foreach=False),
    "NAdam": lambda p: optim.NAdam(p, lr=0.1),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.1, momentum=0.9, centered=True),
    "Rprop": lambda p: optim.Rprop(p, lr=0.1),
}
TWO_GRAPHS = {"SGD with dampening": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1)}


def train(device: torch.device | str, make: Make, *, closure: bool = False) -> dict[str, Any]:
    """Losses, final state and compiles of six steps."""
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(2, 4, 3, bias=False), torch.nn.BatchNorm2d(4), torch.nn.Flatten()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 3))
    model = model.to(device, memory_format=torch.channels_last)
    optimizer = make(model.parameters())
    generator = torch.Generator().manual_seed(1)
    compiles, losses = counters.compiles, []
    for _ in range(6):
        x = torch.randn(5, 2, 6, 6, generator=generator).to(device)

        def forward(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(x).square().mean()
            loss.backward()
            return loss

        loss = optimizer.step(forward) if closure else forward()
        if not closure:
            optimizer.step()
        losses.append(loss.detach())
        rt.sync()
    compiles = counters.compiles - compiles
    state = [t for kept in optimizer.state_dict()["state"].values() for t in kept.values()]
    return {
        "losses": torch.stack(losses).cpu(),
        "state": [t.cpu() for t in state if t is not None],
        "compiles": compiles,
    }


@pytest.mark.parametrize("name", [*MAKES, *TWO_GRAPHS])
@pytest.mark.parametrize("closure", [False, True], ids=["", "closure"])
def test_the_first_step_is_the_graph_of_later_ones(
    name: str, closure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executables, "_executables", OrderedDict())
    make = (MAKES | TWO_GRAPHS)[name]
    expected = train("cpu", make, closure=closure)
    found = train(DEVICE, make, closure=closure)
    assert found["compiles"] == (2 if name in TWO_GRAPHS else 1)
    torch.testing.assert_close(found["losses"], expected["losses"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found["state"], expected["state"], rtol=1e-3, atol=1e-4)


def test_loaded_state_and_parameters_without_gradients_are_left_alone() -> None:
    used, unused = (torch.nn.Parameter(torch.ones(3, device=DEVICE)) for _ in range(2))
    first = torch.optim.Adam([used, unused])
    used.sum().backward()
    first.step()
    assert set(first.state) == {used}
    second = torch.optim.Adam([used, unused])
    second.load_state_dict(first.state_dict())
    second.step()
    assert second.state[used]["step"] == 2
    torch.testing.assert_close(second.state[used]["exp_avg"].cpu(), torch.full((3,), 0.19))


def test_an_optimizer_that_makes_its_state_otherwise_steps_as_it_does() -> None:
    class Own(torch.optim.Optimizer):
        def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
            super().__init__(parameters, {})

        def _init_group(self, *anything: Any) -> None:
            raise AssertionError("not torch's to call")

        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                parameter.data.sub_(parameter.grad)

    parameter = torch.nn.Parameter(torch.ones(3, device=DEVICE))
    parameter.sum().backward()
    Own([parameter]).step()
    assert parameter.tolist() == [0.0, 0.0, 0.0]
