"""What a captured step may not do: it is recorded, with right numbers, and the line is named."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import trcomp
import trcomp.runtime as rt

pytestmark = pytest.mark.runtime

WEIGHT = 1.0
TURNS = iter(range(100))
NOISE = torch.Generator().manual_seed(0)


def reads(value: torch.Tensor) -> torch.Tensor:
    return value * 2 if value.sum().item() > 0 else value


def branches(value: torch.Tensor) -> torch.Tensor:
    if value.sum() > 0:
        return value * 2
    return value


def prints(value: torch.Tensor) -> torch.Tensor:
    print("a step")
    return value * 2


def shows(value: torch.Tensor) -> torch.Tensor:
    str(value)
    return value * 2


def draws_with_python(value: torch.Tensor) -> torch.Tensor:
    return value * 2 if random.random() < 2 else value


def draws_with_numpy(value: torch.Tensor) -> torch.Tensor:
    return value * 2 + 0 * float(np.random.rand())


def draws_with_torch(value: torch.Tensor) -> torch.Tensor:
    return value * 2 if torch.rand(()) < 2 else value


def draws_with_a_generator(value: torch.Tensor) -> torch.Tensor:
    return value * 2 + 0 * torch.rand(3, device="xla", generator=NOISE)


def looks_at_the_clock(value: torch.Tensor) -> torch.Tensor:
    return value * 2 if time.time() else value


def takes_turns(value: torch.Tensor) -> torch.Tensor:
    return value * 2 if next(TURNS) >= 0 else value


def ends_the_step(value: torch.Tensor) -> torch.Tensor:
    made = value * 2
    rt.sync()
    return made


def writes_a_file(value: torch.Tensor) -> torch.Tensor:
    FILE.write("a step")
    return value * 2


FILE = io.StringIO()
REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "item": (reads, "`return value * 2 if value.sum().item() > 0 else value` reads a value"),
    "branch": (branches, "`if value.sum() > 0:` reads a value of the device"),
    "print": (prints, '`print("a step")` prints'),
    "str": (shows, "`str(value)` reads a value of the device"),
    "random": (draws_with_python, "draws on the host"),
    "numpy": (draws_with_numpy, "it draws numbers of numpy.random"),
    "torch": (draws_with_torch, "it draws numbers of torch's generator of the CPU"),
    "generator": (draws_with_a_generator, "it draws from the generator NOISE"),
    "clock": (looks_at_the_clock, "looks at the clock"),
    "iterator": (takes_turns, "TURNS is an iterator"),
    "sync": (ends_the_step, "`rt.sync()` ends a step"),
    "file": (writes_a_file, "reads or writes a file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_recorded_and_says_what_prevents_more(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    function, reason = REFUSED[name]
    run = trcomp.step(function)
    before = rt.metrics()["refused_captures"]
    for i in range(1, 5):
        made = run(torch.full((3,), float(i), device="xla"))
        assert made.tolist() == [2 * i] * 3
    printed = capsys.readouterr()
    assert f"trcomp: {function.__name__}: recorded in each call, not captured:" in printed.err
    assert reason in printed.err
    assert len(printed.err.splitlines()) == 1
    assert rt.metrics()["refused_captures"] - before == 1
    assert printed.out.count("a step") == (4 if name == "print" else 0)
    if name in ("item", "print"):
        assert f"{__file__}:" in printed.err


def test_host_streams_are_not_moved_by_the_attempt() -> None:
    run = trcomp.step(draws_with_numpy)
    np.random.seed(3)
    for _ in range(3):
        run(torch.ones(3, device="xla"))
    drawn = np.random.rand()
    np.random.seed(3)
    assert drawn == np.random.rand(4)[3]


def test_state_that_moves_on_in_python_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return value * self.calls

    model = Model()

    @trcomp.step
    def run(value: torch.Tensor) -> torch.Tensor:
        return model(value)

    for i in range(1, 8):
        assert run(torch.ones(2, device="xla")).tolist() == [i] * 2
    assert model.calls == 7
    text = capsys.readouterr().err
    assert "`self.calls += 1`: it leaves model.calls changed: it was" in text


def test_a_global_number_and_a_list_are_guarded(capsys: pytest.CaptureFixture[str]) -> None:
    global WEIGHT
    weights = [1.0]

    @trcomp.step
    def weigh(value: torch.Tensor) -> torch.Tensor:
        return value * WEIGHT + weights[-1]

    ones = torch.ones(2, device="xla")
    for i in range(6):
        WEIGHT = 2.0 if i > 2 else 1.0
        if i == 4:
            weights.append(5.0)
        assert weigh(ones).tolist() == [WEIGHT + weights[-1]] * 2
    text = capsys.readouterr().err
    assert "captured again: WEIGHT was 1.0 and is 2.0" in text
    assert "captured again: weights was of length 1 and is of length 2" in text


def test_a_result_that_autograd_goes_on_from(capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Linear(3, 1).to("xla")

    @trcomp.step
    def forward(value: torch.Tensor) -> torch.Tensor:
        return model(value)

    for _ in range(5):
        model.zero_grad()
        forward(torch.ones(2, 3, device="xla")).sum().backward()
        assert model.bias.grad.tolist() == [2]
    assert "whose backward pass is still to come" in capsys.readouterr().err


def test_arguments_that_cannot_be_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    @trcomp.step
    def move(value: torch.Tensor) -> torch.Tensor:
        return value.to("xla") * 2

    for i in range(3):
        assert move(torch.full((2,), float(i))).tolist() == [2 * i] * 2
    assert "value is a tensor on the CPU" in capsys.readouterr().err

    @trcomp.step
    def attack(value: torch.Tensor) -> torch.Tensor:
        value.square().sum().backward()
        return value.grad * 1

    for i in range(3):
        given = torch.full((2,), float(i), device="xla", requires_grad=True)
        assert attack(given).tolist() == [2 * i] * 2
    assert "value takes part in autograd" in capsys.readouterr().err


def test_a_tensor_that_nothing_leads_to(capsys: pytest.CaptureFixture[str]) -> None:
    from functools import lru_cache

    @lru_cache
    def table() -> torch.Tensor:
        return torch.arange(3.0, device="xla")

    @trcomp.step
    def look_up(value: torch.Tensor) -> torch.Tensor:
        return value + table()

    for i in range(4):
        if i == 2:
            table().add_(1)
        expected = [n + i + (i >= 2) for n in range(3)]
        assert look_up(torch.full((3,), float(i), device="xla")).tolist() == expected
    assert "nothing of the script leads to" in capsys.readouterr().err


def test_an_operator_without_a_lowering_runs_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    @trcomp.step
    def values(matrix: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eig(matrix)[0].real.sum()

    for i in range(1, 6):
        matrix = (torch.eye(2) * i).to("xla")
        assert values(matrix).item() == pytest.approx(2 * i)
    assert "an operator run on the CPU" in capsys.readouterr().err


def test_what_is_no_function() -> None:
    with pytest.raises(TypeError, match=r"got 8 in place of a function.*max_captures=8"):
        trcomp.step(8)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="max_captures: got 0; a whole number from 1"):
        trcomp.step(max_captures=0)
