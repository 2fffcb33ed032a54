"""Index tensors, masks, scatters, embeddings, as on the CPU and without needless reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trcomp.runtime as rt
from tests.runtime.agreement import assert_agrees
from trcomp.runtime.device import DEVICE
from trcomp.runtime.metrics import counters

pytestmark = pytest.mark.runtime


def _data() -> torch.Tensor:
    return torch.arange(60.0).reshape(5, 4, 3)


def _rows() -> torch.Tensor:
    return torch.tensor([0, -1, 2])


READS: dict[str, Callable[..., Any]] = {
    "one index": lambda a, i: a[i],
    "beside slices": lambda a, i: a[:, i % 3, 1:],
    "two indices": lambda a, i: a[i, i % 4],
    "two indices apart": lambda a, i: a[i, :, i % 3],
    "broadcast": lambda a, i: a[i[:, None], i[None, :2] % 4],
    "none and ellipsis": lambda a, i: a[..., None, i % 3],
    "take": lambda a, i: torch.take(a, i * 7),
    "index_select": lambda a, i: a.index_select(0, i % 5),
    "gather": lambda a, i: a.gather(1, (i % 4).reshape(3, 1, 1).expand(3, 1, 3)),
    "take_along_dim": lambda a, i: torch.take_along_dim(a, a.argsort(-1), -1),
}

WRITES: dict[str, Callable[..., Any]] = {
    "one index": lambda a, i: a.__setitem__(i, 7.0),
    "rows": lambda a, i: a.__setitem__(i, torch.ones(4, 3, device=a.device)),
    "beside slices": lambda a, i: a.__setitem__((slice(1, 4), i % 4), -1.0),
    "accumulate": lambda a, i: a.index_put_((i[[0, 0, 1]],), a[:3] * 1, accumulate=True),
    "mask": lambda a, i: a.__setitem__(a > 20, 0.0),
    "mask of rows": lambda a, i: a.__setitem__(a[:, 0, 0] > 20, 3.0),
    "mask behind": lambda a, i: a.__setitem__((slice(None), a[0, :, 0] > 4), 2.0),
    "mask with rows": lambda a, i: a.__setitem__(
        a[:, 0, 0] > 30, torch.arange(24.0, device=a.device).reshape(2, 4, 3)
    ),
    "mask with values": lambda a, i: a.__setitem__(a > 50, torch.arange(9.0, device=a.device)),
    "mask accumulates": lambda a, i: a.index_put_((a > 9,), torch.ones((), device=a.device), True),
    "scatter_": lambda a, i: a.scatter_(0, (i % 5).reshape(3, 1, 1), 5.0),
    "scatter_add_": lambda a, i: a.scatter_add_(
        0, torch.zeros(4, 4, 3, dtype=torch.int64, device=a.device), a[:4] * 1
    ),
    "scatter_reduce_": lambda a, i: a.scatter_reduce_(
        0, (a[:3] % 2).long(), a[1:4] * 1, "mean", include_self=False
    ),
    "index_add_": lambda a, i: a.index_add_(1, i[:2] % 4, a[:, :2] * 1, alpha=-2),
    "index_copy_": lambda a, i: a.index_copy_(0, i % 5, a[:3] + 1),
    "index_fill_": lambda a, i: a.index_fill_(2, i[:1], 9),
    "masked_fill_": lambda a, i: a.masked_fill_(a % 2 == 0, float("-inf")),
    "masked_scatter_": lambda a, i: a.masked_scatter_(a % 2 == 0, -a),
    "put_": lambda a, i: a.put_(i, torch.zeros(3, device=a.device)),
    "through a view": lambda a, i: a[1:, 2].__setitem__(a[1:, 2] > 30, 0.5),
}


@pytest.mark.parametrize("name", READS)
def test_reads(name: str) -> None:
    assert_agrees(READS[name], _data(), _rows())


@pytest.mark.parametrize("name", WRITES)
def test_writes(name: str) -> None:
    def write(a: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        a = a.clone()
        WRITES[name](a, i)
        return a

    before = counters.early_syncs
    moved = write(_data().to(DEVICE), _rows().to(DEVICE))
    assert counters.early_syncs == before, "the write was read back"
    del moved
    assert_agrees(write, _data(), _rows())


@pytest.mark.parametrize("name", ["one index", "two indices", "gather", "index_select"])
def test_gradients_of_reads(name: str) -> None:
    assert_agrees(READS[name], _data().requires_grad_(), _rows())


def test_a_read_by_mask_is_counted() -> None:
    assert_agrees(lambda a: a[a > 10], _data(), falls_back=True)
    assert counters.fallbacks["nonzero"]


def test_values_of_another_dtype_are_refused() -> None:
    a = torch.zeros(3, device=DEVICE)
    with pytest.raises(RuntimeError, match="dtypes match"):
        a.index_put_((torch.tensor([0], device=DEVICE),), torch.ones(1, device=DEVICE).long())


@pytest.mark.parametrize("padding, by_frequency", [(None, False), (2, False), (-3, True)])
def test_embedding_and_its_gradient(padding: int | None, by_frequency: bool) -> None:
    weight = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    tokens = torch.tensor([[0, 2, 2], [5, 3, 2]])

    def embed(weight: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return F.embedding(tokens, weight, padding, scale_grad_by_freq=by_frequency)

    assert_agrees(embed, weight, tokens)


def test_other_indices_compile_nothing() -> None:
    a = torch.zeros(10, device=DEVICE)
    rt.sync()

    def write(i: int) -> None:
        a[torch.tensor([i, i + 1], device=DEVICE)] = float(i)
        rt.sync()

    write(0)
    compiles = counters.compiles
    write(5)
    assert counters.compiles == compiles
    assert a.cpu().tolist() == [0.0] * 5 + [5.0] * 2 + [0.0] * 3
