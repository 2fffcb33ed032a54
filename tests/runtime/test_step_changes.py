"""A captured step whose surroundings change at random calls trains as the function itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import trcomp
import trcomp.runtime as rt

pytestmark = [pytest.mark.runtime, pytest.mark.slow]


class _Training:
    """A training whose parts the test exchanges between calls."""

    def __init__(self, wrap: Callable[..., Any]) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Dropout(0.4), nn.Linear(4, 2)
        ).to("xla")
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.clears = True
        self.size = 4
        self.weight = 1.0
        self.made: list[torch.Tensor] = []

        def run(inputs: torch.Tensor, weight: float) -> torch.Tensor:
            if self.clears:
                self.optimizer.zero_grad()
            loss = F.mse_loss(self.model(inputs), inputs[:, :2]) * weight
            loss.backward()
            # Whatever is changed, it must not diverge: that would magnify the last bit's rounding.
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            return loss.detach()

        self.run = wrap(run)

    def call(self, i: int) -> None:
        inputs = torch.full((self.size, 3), 1 + i / 8) + torch.arange(self.size * 3).view(-1, 3) / 9
        self.made.append(self.run(inputs.to("xla"), self.weight))
        rt.sync()

    def apply(self, change: str) -> None:
        layer: Any = self.model[0]
        if change == "size":
            self.size = 7 - self.size
        elif change == "mode":
            self.model.train(not self.model.training)
        elif change == "layer":
            self.model[2].train(not self.model[2].training)
        elif change == "frozen":
            layer.weight.requires_grad_(not layer.weight.requires_grad)
        elif change == "rate":
            for group in self.optimizer.param_groups:
                group["lr"] *= 0.7
        elif change == "weight":
            self.weight = 1.5 - self.weight
        elif change == "decay":
            for group in self.optimizer.param_groups:
                group["weight_decay"] = 0.1 - group["weight_decay"]
        elif change == "optimizer":
            kind = type(self.optimizer)
            other = torch.optim.AdamW if kind is torch.optim.SGD else torch.optim.SGD
            self.optimizer = other(self.model.parameters(), lr=0.05)
        elif change == "clears":
            self.clears = not self.clears
        elif change == "no gradients":
            self.optimizer.zero_grad()
        elif change == "outside":
            with torch.no_grad():
                layer.weight.mul_(0.9)
        elif change == "data":
            layer.weight.data = layer.weight.data.clone()
        elif change == "loaded":
            self.optimizer.load_state_dict(self.optimizer.state_dict())
        elif change == "seed":
            torch.manual_seed(5)

    def left(self) -> list[torch.Tensor]:
        return [t.cpu() for t in (*self.made, *self.model.state_dict().values())]


_CHANGES = (
    *("size", "mode", "layer", "frozen", "rate", "weight", "decay", "optimizer", "clears"),
    *("no gradients", "outside", "data", "loaded", "seed"),
)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.one_of(st.none(), st.sampled_from(_CHANGES)), min_size=4, max_size=14))
def test_changes_at_random_calls(changes: list[str | None]) -> None:
    def train(wrap: Callable[..., Any]) -> list[torch.Tensor]:
        training = _Training(wrap)
        for i, change in enumerate(changes):
            training.call(i)
            if change is not None:
                training.apply(change)
            training.call(i)
        return training.left()

    got, expected = train(trcomp.step), train(lambda function: function)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
