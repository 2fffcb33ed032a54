"""Distances between rows, equal rows among them, and their gradients."""

from __future__ import annotations

import pytest
import torch

from tests.runtime.agreement import assert_agrees

pytestmark = pytest.mark.runtime


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, float("inf")])
def test_cdist(p: float) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 3, generator=g)
    y = torch.cat([x[:, :2], torch.randn(2, 2, 3, generator=g)], 1)
    assert_agrees(
        lambda x, y: torch.cdist(x, y, p, compute_mode="donot_use_mm_for_euclid_dist"),
        x.requires_grad_(),
        y.requires_grad_(),
    )


@pytest.mark.parametrize("p", [0.0, 2.0])
def test_cdist_of_one_set_and_several(p: float) -> None:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 1, 4, 3, generator=g), torch.randn(1, 5, 3, generator=g)
    assert_agrees(
        lambda x, y: torch.cdist(x, y, p, compute_mode="donot_use_mm_for_euclid_dist"),
        x.requires_grad_(),
        y.requires_grad_(),
    )
