"""Reductions: accumulation of half types, empty and 0-dim tensors, NaN, several dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.runtime.agreement import assert_agrees
from tests.runtime.test_elementwise import all_of
from trcomp.runtime.device import DEVICE

pytestmark = pytest.mark.runtime


def sample() -> torch.Tensor:
    return torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))


REDUCTIONS: list[Callable[..., Any]] = [
    lambda a: a.sum(),
    lambda a: a.sum((0, -1)),
    lambda a: a.sum(1, keepdim=True),
    lambda a: a.sum(dtype=torch.float64),
    lambda a: a.mean((0, 2)),
    lambda a: a.prod(1),
    lambda a: a.amax((1, 2)),
    lambda a: a.amin(),
    lambda a: a.max(1),
    lambda a: a.min(-1, keepdim=True),
    lambda a: a.argmax(),
    lambda a: a.argmin(0),
    lambda a: a.var(),
    lambda a: a.std((0, 1), correction=0),
    lambda a: torch.var_mean(a, 2, correction=2, keepdim=True),
    lambda a: a.norm(),
    lambda a: torch.linalg.vector_norm(a, 3, (0, 1)),
    lambda a: torch.linalg.vector_norm(a, float("inf")),
    lambda a: a.logsumexp((0, 1)),
    lambda a: a.cumsum(1),
    lambda a: a.cumprod(-1),
    lambda a: a.cummax(1),
    lambda a: (a > 1).any(1),
    lambda a: (a > -9).all(),
    lambda a: a.count_nonzero(),
    lambda a: torch.aminmax(a, dim=0),
    lambda a: a.median(),
    lambda a: a.median(1).values,
    lambda a: torch.trace(a[0]),
]


def test_values() -> None:
    assert_agrees(all_of(*REDUCTIONS), sample())


def test_integers_and_bools() -> None:
    whole = (sample() * 3).long()
    assert_agrees(
        all_of(
            lambda a: a.sum(1),
            lambda a: a.to(torch.uint8).sum(),
            lambda a: (a > 0).sum(0),
            lambda a: a.prod(2),
            lambda a: a.max(1).values,
            lambda a: a.to(torch.uint8).any(),
            lambda a: a.cumsum(0),
            lambda a: a.int().cumsum(0),
            lambda a: (a > 0).int().argmax(1),
        ),
        whole,
    )


def test_nan_wins_and_is_found() -> None:
    holed = sample()
    holed[1, 2, 3] = float("nan")
    assert_agrees(
        all_of(
            lambda a: a.max(1),
            lambda a: a.min(2),
            lambda a: a.amax(),
            lambda a: a.argmax(),
            lambda a: a.nansum(1),
            lambda a: a.cummin(2),
            lambda a: a.sort(2).values,
            lambda a: a.topk(2, -1).values,
            lambda a: a.median(2).values,
            lambda a: a.nanmedian(2).values,
        ),
        holed,
    )


def test_half_types_add_up_in_float32() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        ones = torch.ones(2, 4096, dtype=dtype, device=DEVICE)
        assert ones.sum(1).tolist() == [4096.0] * 2
        assert ones.mean().item() == 1.0
        assert ones.norm().item() == pytest.approx(8192**0.5, rel=0.01)
        assert ones.cumsum(1)[0, -1].item() == 4096.0


def test_one_and_no_element() -> None:
    one = torch.tensor(2.0)
    assert_agrees(
        all_of(
            lambda a: a.sum(0),
            lambda a: a.max(0),
            lambda a: a.softmax(0),
            lambda a: a.cumsum(-1),
            lambda a: a.sort(0),
            lambda a: a.argmax(),
            lambda a: a.logsumexp(0),
        ),
        one,
    )
    assert_agrees(
        all_of(
            lambda a: a.sum(0),
            lambda a: a.sum(1),
            lambda a: a.prod(0),
            lambda a: a.mean(0),
            lambda a: a.any(0),
            lambda a: a.all(0),
            lambda a: a.norm(),
            lambda a: a.cumsum(0),
        ),
        torch.zeros(0, 3),
    )


def test_variance_keeps_its_digits_far_from_zero() -> None:
    far = 10_000 + torch.arange(100.0).div(100)
    assert_agrees(all_of(lambda a: a.var(), lambda a: a.std(correction=0)), far)


@pytest.mark.parametrize("i", [0, 1, 4, 5, 6, 7, 8, 12, 13, 15, 16, 17, 18, 19, 20, 21, 27])
def test_gradients(i: int) -> None:
    assert_agrees(REDUCTIONS[i], sample().requires_grad_())


def test_ties_share_the_gradient_as_in_torch() -> None:
    tied = torch.tensor([[1.0, 2.0, 2.0], [3.0, 3.0, 1.0]], requires_grad=True)
    assert_agrees(lambda a: a.amax(1), tied)
    assert_agrees(lambda a: a.max(1).values, tied)
    assert_agrees(lambda a: a.max(), tied)


def test_equal_reads_the_answer() -> None:
    a = torch.arange(3, device=DEVICE)
    assert torch.equal(a, a.clone())
    assert not torch.equal(a, a + 1)
    assert not torch.equal(a, a[:2])
