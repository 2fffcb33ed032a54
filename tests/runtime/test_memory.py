"""Buffers live as long as the tensors that see them; many steps leave nothing behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
import torch

import trcomp.runtime as rt
from trcomp.runtime.device import DEVICE
from trcomp.runtime.ir import num_pending

pytestmark = pytest.mark.runtime


def live_bytes() -> int:
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def computed(*size: int) -> torch.Tensor:
    made = torch.ones(size, device=DEVICE) * 2
    rt.sync(wait=True)
    return made


@pytest.fixture(autouse=True)
def settled() -> None:
    rt.sync(wait=True)


def test_a_buffer_dies_with_the_last_tensor_that_sees_it() -> None:
    before = live_bytes()
    base = computed(1000, 100)
    size = live_bytes() - before
    assert size >= 400_000
    view, alias = base[10:], base.detach()
    parameter = torch.nn.Parameter(base)
    del base, alias, parameter
    assert live_bytes() - before == size
    assert view.sum().item() == 2 * 990 * 100
    del view
    rt.sync(wait=True)
    assert live_bytes() - before < 1000


def test_a_buffer_saved_for_backward_dies_with_the_graph() -> None:
    x = computed(1000, 100).requires_grad_()
    before = live_bytes()
    loss = x.exp().sum()
    rt.sync(wait=True)
    assert live_bytes() - before >= 400_000  # exp keeps its result
    loss.backward()
    x.grad = None
    rt.sync(wait=True)
    assert live_bytes() - before < 1000


def test_what_nobody_sees_any_more_is_not_computed_or_kept() -> None:
    x = computed(1000, 100)
    before = live_bytes()
    y = x
    for _ in range(5):
        y = y * 1.5
    rt.sync(wait=True)
    assert 400_000 <= live_bytes() - before < 401_000


def test_a_storage_that_is_replaced_frees_the_old_one() -> None:
    x, y = computed(1000, 100), computed(1000, 100)
    before = live_bytes()
    x.data = y
    x = x + 0
    y.add_(1)
    rt.sync(wait=True)
    y.set_(x)
    rt.sync(wait=True)
    assert live_bytes() - before < 1000 - 300_000


def test_an_exception_with_its_traceback_keeps_nothing_alive_after_it_is_handled() -> None:
    x = computed(1000, 100)
    before = live_bytes()

    def fails() -> None:
        y = x * 3
        rt.sync(wait=True)
        raise ValueError(y.shape)

    with pytest.raises(ValueError):
        fails()
    rt.sync(wait=True)
    assert live_bytes() - before < 1000


def _model() -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(128, 8)
    ).to(DEVICE)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def test_500_steps_leave_nothing_behind() -> None:
    model, optimizer = _model()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    arrays, resident, history = [], [], []
    for i in range(500):
        x = torch.randn(32, 64).to(DEVICE)
        loss = torch.nn.functional.cross_entropy(
            model(x), torch.randint(0, 8, (32,), device=DEVICE)
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        rt.sync()
        if i % 50 == 49:
            history.append(loss.item())
            rt.sync(wait=True)
            arrays.append((len(jax.live_arrays()), live_bytes()))
            resident.append(resident_bytes())
    assert len(set(arrays[1:])) == 1
    assert resident[-1] - resident[2] < 16 * 2**20
    assert num_pending() == 0
    assert len(history) == 10


def test_steps_that_end_in_a_read_or_an_error_leave_nothing_behind_either() -> None:
    model, optimizer = _model()
    counts = []
    for i in range(15):
        loss = model(torch.ones(4, 64, device=DEVICE)).square().mean()
        loss.backward()
        if i % 3 == 0:
            loss.item()
        if i % 3 == 1:
            with pytest.raises(RuntimeError):
                torch.ones(2, device=DEVICE) + torch.ones(3, device=DEVICE)
        optimizer.step()
        optimizer.zero_grad()
        rt.sync(wait=True)
        del loss
        counts.append(len(jax.live_arrays()))
    assert len(set(counts[3:])) == 1


def test_checkpoints_in_memory_do_not_pile_up() -> None:
    model, optimizer = _model()
    counts = []
    for _ in range(6):
        model(torch.ones(4, 64, device=DEVICE)).sum().backward()
        optimizer.step()
        rt.sync(wait=True)
        kept = {k: v.detach().cpu() for k, v in model.state_dict().items()}
        model.load_state_dict(kept)
        optimizer.load_state_dict(optimizer.state_dict())
        rt.sync(wait=True)
        gc.collect()
        counts.append(len(jax.live_arrays()))
    assert len(set(counts[1:])) == 1


PACES = """
import gc
{before}
import trcomp.runtime
print(gc.get_threshold())
"""


@pytest.mark.parametrize(
    ("before", "pace"),
    [
        ("own = gc.get_threshold()", lambda own: (10_000, *own[1:])),
        ("gc.set_threshold(900, 5, 5)", lambda own: (900, 5, 5)),
        ("gc.set_threshold(0)", lambda own: (0, *own[1:])),
    ],
    ids=["python's own", "the script's", "off"],
)
def test_objects_of_a_recorded_step_are_not_searched_for_cycles(
    before: str, pace: Callable[[tuple[int, ...]], tuple[int, ...]]
) -> None:
    """Unless the script has a pace of its own for Python's garbage collector."""
    script = PACES.format(before=before)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == str(pace(gc.get_threshold())), done.stderr
