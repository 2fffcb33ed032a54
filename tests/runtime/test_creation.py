"""Ranges, grids and fills; a range that starts elsewhere compiles nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import trcomp.runtime as rt
from tests.runtime.agreement import assert_alike
from trcomp.runtime.device import DEVICE
from trcomp.runtime.metrics import counters

pytestmark = pytest.mark.runtime

FACTORIES: list[Callable[..., torch.Tensor]] = [
    lambda device: torch.arange(7, device=device),
    lambda device: torch.arange(2, 9, 3, device=device),
    lambda device: torch.arange(5, -4, -2, device=device),
    lambda device: torch.arange(0.0, 1.0, 0.1, device=device),
    lambda device: torch.arange(1.5, 4.5, dtype=torch.int64, device=device),
    lambda device: torch.arange(3, dtype=torch.bfloat16, device=device),
    lambda device: torch.arange(0, device=device),
    lambda device: torch.linspace(-1, 1, 7, device=device),
    lambda device: torch.linspace(0, 10, 5, dtype=torch.int64, device=device),
    lambda device: torch.linspace(3, 4, 1, device=device),
    lambda device: torch.linspace(4.3, -3.9, 50, dtype=torch.int64, device=device),
    lambda device: torch.linspace(50, 1, 50, dtype=torch.int64, device=device),
    lambda device: torch.logspace(0, 2.9, 4, dtype=torch.int32, device=device),
    lambda device: torch.logspace(1.2, 2, 1, dtype=torch.int64, device=device),
    lambda device: torch.logspace(0, 3, 4, device=device),
    lambda device: torch.eye(3, device=device),
    lambda device: torch.eye(2, 4, dtype=torch.int64, device=device),
    lambda device: torch.full((2, 3), 7, device=device),
    lambda device: torch.full((2,), -0.5, dtype=torch.float16, device=device),
    lambda device: torch.full((2,), True, device=device),
    lambda device: torch.zeros(2, 0, device=device),
    lambda device: torch.ones(2, dtype=torch.complex64, device=device),
    lambda device: torch.tril_indices(3, 4, -1, device=device),
    lambda device: torch.triu_indices(3, 3, 1, device=device),
    lambda device: torch.tensor([[1, 2], [3, 4]], device=device),
    lambda device: torch.scalar_tensor(2.5, device=device),
    lambda device: torch.ones(2, 3, device=device).new_full((2,), 3),
    lambda device: torch.full_like(torch.ones(3, 2, device=device).t(), 2),
    lambda device: torch.arange(4, out=torch.empty(0, device=device)),
    lambda device: torch.ones(2, 3, device=device).new_empty_strided((2, 3), (1, 2)).fill_(1),
]


def test_factories_agree_with_the_cpu() -> None:
    before = counters.fallbacks.total()
    made = [factory(DEVICE) for factory in FACTORIES]
    due = [factory(torch.device("cpu")) for factory in FACTORIES]
    assert_alike(made, due)
    assert [m.stride() for m in made] == [d.stride() for d in due]
    assert counters.fallbacks.total() == before


def test_another_start_or_value_compiles_nothing() -> None:
    def make(start: int) -> list[float]:
        positions = torch.arange(start, start + 3, device=DEVICE)
        made = positions * torch.full((3,), start + 0.5, device=DEVICE)
        rt.sync()
        return made.cpu().tolist()  # type: ignore[no-any-return]

    make(5)
    compiles = counters.compiles
    assert make(9) == [9 * 9.5, 10 * 9.5, 11 * 9.5]
    assert counters.compiles == compiles


def test_bad_ranges_are_refused_as_by_torch() -> None:
    for bad in (
        lambda: torch.arange(1, 0, 1, device=DEVICE),
        lambda: torch.arange(0, 1, 0, device=DEVICE),
        lambda: torch.linspace(0, 1, -1, device=DEVICE),
    ):
        with pytest.raises(RuntimeError):
            bad()
