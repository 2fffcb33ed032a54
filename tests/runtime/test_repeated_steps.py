"""Steps that repeat until one differs in one place: the CPU's numbers, no compile for a repeat."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import trcomp.runtime as rt
from tests.runtime.agreement import assert_alike
from trcomp.runtime.device import DEVICE

pytestmark = pytest.mark.runtime


class State:
    """What a step works on, and goes on with in the next."""

    def __init__(self, device: str) -> None:
        self.x = torch.linspace(-1, 1, 16, dtype=torch.float64).reshape(4, 4).to(device)
        self.y = torch.linspace(0, 2, 16, dtype=torch.float64).reshape(4, 4).to(device)


def _swap(s: State) -> None:
    s.x, s.y = s.y, s.x


def _replace(name: str, function: Callable[[State], torch.Tensor]) -> Callable[[State], None]:
    return lambda s: setattr(s, name, function(s))


OPERATIONS: dict[str, Callable[[State], object]] = {
    "add": _replace("x", lambda s: s.x + s.y),
    "shrink": lambda s: s.x.mul_(0.5),
    "shrink more": lambda s: s.x.mul_(0.25),
    "multiply": _replace("y", lambda s: torch.tanh(s.x @ s.y)),
    "transpose": _replace("x", lambda s: s.x.t()),
    "write rows": lambda s: s.y[1:3].add_(1),
    "write other rows": lambda s: s.y[0:2].add_(1),
    "swap": _swap,
    "copy": lambda s: s.y.copy_(s.x.clone()),
    "alias": _replace("y", lambda s: s.x[:, :]),
    "wider": _replace("x", lambda s: (s.x.to(torch.complex128) * 2).real),
    "read": lambda s: s.x.div_(1 + abs(s.x.sum().item())),
}
names = st.sampled_from(sorted(OPERATIONS))


def _run(device: str, steps: Sequence[Sequence[str]]) -> list[list[torch.Tensor]]:
    """Both tensors after each step."""
    state, found = State(device), []
    for step in steps:
        for name in step:
            OPERATIONS[name](state)
        if device == DEVICE:
            rt.sync()
        found.append([state.x.cpu().clone(), state.y.cpu().clone()])
    return found


@settings(max_examples=40, deadline=None)
@given(st.lists(names, min_size=2, max_size=8), names, st.data())
def test_a_step_may_differ_at_any_operation(
    step: list[str], other: str, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(step) - 1))
    diverging = [*step[:place], other, *step[place + 1 :]]
    steps = [step] * 3 + [diverging] + [step] * 2
    assert_alike(_run(DEVICE, steps), _run("cpu", steps))
    known = rt.metrics()["compiles"]
    assert_alike(_run(DEVICE, steps), _run("cpu", steps))
    assert rt.metrics()["compiles"] == known
