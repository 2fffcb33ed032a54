"""Reading what takes an operation or two leaves the step whole."""

from __future__ import annotations

import pytest
import torch

import trcomp.runtime as rt
from trcomp.runtime.device import DEVICE
from trcomp.runtime.metrics import counters

pytestmark = pytest.mark.runtime


def step(mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A step that looks at its mask in the middle, as transformers' models do."""
    hidden = x.sin()
    if not bool((mask != 0).all()):
        hidden = hidden * mask
    return hidden.cos().sum()


@pytest.mark.parametrize("last", [0.0, 1.0])
def test_a_look_at_the_input_cuts_no_step(last: float) -> None:
    mask, x = torch.tensor([1.0, 1.0, last]), torch.randn(3)
    on_device = mask.to(DEVICE), x.to(DEVICE)
    rt.sync()
    before = counters.early_syncs, counters.reads_aside
    made = step(*on_device)
    rt.sync()
    assert (counters.early_syncs, counters.reads_aside) == (before[0], before[1] + 1)
    torch.testing.assert_close(made.cpu(), step(mask, x))


def test_a_loop_that_ends_no_step_is_cut_all_the_same() -> None:
    x = torch.ones(3, device=DEVICE)
    total = torch.zeros((), device=DEVICE)
    rt.sync()
    early = counters.early_syncs
    for i in range(12):
        total = total + (x * i).sin().sum()
        assert bool((x + i > 0).all())
    assert counters.early_syncs > early
    due = sum(3 * torch.tensor(float(i)).sin().item() for i in range(12))
    assert total.item() == pytest.approx(due, abs=1e-4)


def test_what_needs_much_is_computed_with_the_step() -> None:
    x = torch.randn(4, 4, device=DEVICE)
    rt.sync()
    before = counters.reads_aside
    kept = x + 1
    assert isinstance(x.sin().cos().tan().exp().sigmoid().sum().item(), float)
    assert counters.reads_aside == before
    assert kept.shape == (4, 4)
