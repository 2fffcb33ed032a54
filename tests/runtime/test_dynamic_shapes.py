"""Results whose size depends on values: one counted read each; forms of fixed size need none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trcomp.runtime as rt
from tests.runtime.agreement import assert_agrees, assert_alike
from trcomp.runtime.device import DEVICE
from trcomp.runtime.metrics import counters

pytestmark = pytest.mark.runtime


def values() -> torch.Tensor:
    return torch.tensor([[3.0, -1.0, 2.0], [0.0, 2.0, -5.0]])


READ: dict[str, Callable[[torch.Tensor], Any]] = {
    "nonzero": lambda a: a.nonzero(),
    "nonzero as tuple": lambda a: torch.nonzero(a > 0, as_tuple=True),
    "where of a condition": lambda a: torch.where(a > 0),
    "argwhere": lambda a: torch.argwhere(a > 0),
    "masked_select": lambda a: torch.masked_select(a, a > 0),
    "boolean index": lambda a: a[a > 0],
    "boolean index of rows": lambda a: a[a[:, 0] > 0],
    "boolean index beside another": lambda a: a[a[:, 0] > 0, 1],
    "nothing is chosen": lambda a: a[a > 100],
    "unique": lambda a: torch.unique(a, return_inverse=True, return_counts=True),
    "unique of rows": lambda a: torch.unique(a, dim=0),
    "unique_consecutive": lambda a: torch.unique_consecutive(a.flatten()),
    "repeat_interleave": lambda a: torch.repeat_interleave(a, (a[:, 0] + 1).long(), dim=0),
    "bincount": lambda a: torch.bincount((a[a >= 0]).long()),
    "a size that is a value": lambda a: a.flatten()[: int(a.amax())],
    "an update of what was chosen": lambda a: a.clone().index_put_((a > 0,), a[a > 0] * 2),
}

UNREAD: dict[str, Callable[[torch.Tensor], Any]] = {
    "a number at a mask": lambda a: a.clone().__setitem__(a > 0, 7.0),
    "a 0-dim tensor at a mask": lambda a: a.index_put((a > 0,), a.sum()),
    "a row at a mask of rows": lambda a: a.index_put((a[:, 0] > 0,), a[1]),
    "where of three": lambda a: torch.where(a > 0, a, 0.0),
    "masked_fill": lambda a: a.masked_fill(a < 0, float("-inf")),
    "masked_scatter": lambda a: a.masked_scatter(a > 0, -a),
    "clamped index": lambda a: a[torch.arange(2, device=a.device), a.argmax(1)],
    "repeat_interleave by a number": lambda a: a.repeat_interleave(3, dim=1),
    "repeat_interleave of a known size": lambda a: torch.repeat_interleave(
        a, (a[:, 0] + 1).long(), dim=0, output_size=5
    ),
    "count_nonzero": lambda a: torch.count_nonzero(a, 1),
    "topk by a mask": lambda a: (a * (a > 0)).topk(2, 1),
    "one_hot": lambda a: F.one_hot((a > 0).long(), 2),
    "sums of segments": lambda a: torch.zeros(3, device=a.device).scatter_add(
        0, a.flatten().long() % 3, a.flatten()
    ),
}


@pytest.mark.parametrize("name", READ)
def test_what_depends_on_values_is_read_once_and_counted(name: str) -> None:
    moved = values().to(DEVICE) + 0
    rt.sync()
    before = rt.metrics()
    made = READ[name](moved)
    after = rt.metrics()
    counted = sum(after["fallbacks"].values()) - sum(before["fallbacks"].values())
    counted += after["early_syncs"] - before["early_syncs"]
    assert counted >= 1
    assert_alike(made, READ[name](values()))


@pytest.mark.parametrize("name", UNREAD)
def test_what_has_a_known_size_needs_no_read(name: str) -> None:
    moved = values().to(DEVICE) + 0
    rt.sync()
    before = counters.early_syncs, counters.fallbacks.total()
    UNREAD[name](moved)
    assert (counters.early_syncs, counters.fallbacks.total()) == before
    assert_agrees(UNREAD[name], values())


DIFFERENTIABLE = ["masked_select", "boolean index", "boolean index of rows", "repeat_interleave"]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_reach_what_was_chosen(name: str) -> None:
    assert_agrees(READ[name], values().requires_grad_(), falls_back=True)


def test_a_mask_that_changes_compiles_nothing_where_it_is_only_a_condition() -> None:
    a = values().to(DEVICE)
    rt.sync()

    def step(limit: float) -> Any:
        made = a.clone()
        made[made > limit] = limit
        rt.sync()
        return made.cpu()

    step(1.0)
    compiles = counters.compiles
    for limit in (0.0, 2.5, -4.0):
        assert torch.equal(step(limit), values().clamp(max=limit))
    assert counters.compiles == compiles


def test_training_on_the_chosen_rows_follows_the_cpu() -> None:
    losses = []
    for device in ("cpu", "xla"):
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 2).to(device)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        x = torch.randn(6, 3).to(device)
        run = []
        for i in range(4):
            kept = x[x[:, 0] > 0.3 * (i - 1)]
            loss = layer(kept).square().sum() / 6
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rt.sync()
            run.append(loss.item())
        losses.append(run)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_sequences_of_unequal_length_are_packed_and_padded() -> None:
    def run(x: torch.Tensor) -> Any:
        lengths = torch.tensor([4, 1, 3])
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        padded, found = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
        rows = [x[i, :n] for i, n in enumerate(lengths.tolist())]
        return packed.data, padded, found, torch.nn.utils.rnn.pad_sequence(rows)

    assert_agrees(run, torch.rand(3, 4, 2, generator=torch.Generator().manual_seed(0)))


def test_branches_and_loops_on_values_follow_them() -> None:
    x = torch.tensor([5.0, 1.0], device=DEVICE)
    steps = 0
    while (x.sum() > 1).item():
        x = x / 2
        steps += 1
    assert steps == 3
    assert [1, 2, 3][torch.tensor(1, device=DEVICE)] == 2
    assert list(range(int(torch.tensor(3, device=DEVICE)))) == [0, 1, 2]
    assert 0.625 in x


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(2, device=DEVICE).to_sparse(),
        lambda: torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (3,), device=DEVICE),
        lambda: torch.eye(2).to_sparse().to(DEVICE),
        lambda: (
            F.embedding(
                torch.tensor([1], device=DEVICE),
                torch.ones(3, 2, device=DEVICE, requires_grad=True),
                sparse=True,
            )
            .sum()
            .backward()
        ),
        lambda: torch.nested.nested_tensor([torch.ones(2, device=DEVICE)] * 2).to_padded_tensor(0),
    ],
)
@pytest.mark.filterwarnings("ignore:.*[Nn]ested:UserWarning")
def test_layouts_that_the_device_does_not_have_are_refused_with_the_next_step(
    make: Callable[[], Any],
) -> None:
    with pytest.raises(RuntimeError, match=r"dense tensors only[^$]*Next: ") as caught:
        make()
    assert "Could not run" not in str(caught.value)
