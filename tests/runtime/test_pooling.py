"""Pooling and resizing: overlaps, padding, dilation, large windows, ties, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.runtime.agreement import assert_agrees

pytestmark = pytest.mark.runtime


def image(*size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(0)).requires_grad_()


POOLS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "max 3x3 stride 2": (lambda x: F.max_pool2d(x, 3, 2, 1), (2, 3, 9, 8)),
    "max with dilation": (lambda x: F.max_pool2d(x, 2, 1, 1, dilation=2), (1, 2, 7, 7)),
    "max rounded up": (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), (1, 2, 8, 8)),
    "max and where": (lambda x: F.max_pool2d(x, 2, return_indices=True), (2, 2, 6, 6)),
    "max of a large window": (
        lambda x: F.max_pool2d(x, 9, 3, 4, return_indices=True),
        (1, 2, 12, 12),
    ),
    "max 1d": (lambda x: F.max_pool1d(x, 3, 2), (2, 3, 11)),
    "max 3d": (lambda x: F.max_pool3d(x, 2, return_indices=True), (1, 2, 4, 6, 4)),
    "average": (lambda x: F.avg_pool2d(x, 2), (2, 3, 6, 8)),
    "average, padding left out": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        (2, 2, 7, 7),
    ),
    "average rounded up": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), (1, 2, 8, 8)),
    "average by another number": (
        lambda x: F.avg_pool2d(x, 2, divisor_override=3),
        (1, 1, 4, 4),
    ),
    "average of a large window": (lambda x: F.avg_pool2d(x, 9, 2, 4), (1, 2, 12, 12)),
    "average 1d": (lambda x: F.avg_pool1d(x, 3, 2, 1), (2, 3, 9)),
    "average 3d": (lambda x: F.avg_pool3d(x, 2, 1), (1, 2, 4, 3, 4)),
    "adaptive, even": (lambda x: F.adaptive_avg_pool2d(x, 3), (2, 3, 6, 9)),
    "adaptive, uneven": (lambda x: F.adaptive_avg_pool2d(x, (3, 5)), (2, 3, 7, 8)),
    "adaptive, larger": (lambda x: F.adaptive_avg_pool2d(x, 6), (1, 1, 4, 4)),
    "adaptive to one": (lambda x: F.adaptive_avg_pool2d(x, 1), (2, 3, 7, 7)),
    "adaptive 1d": (lambda x: F.adaptive_avg_pool1d(x, 4), (2, 3, 9)),
    "adaptive 3d": (lambda x: F.adaptive_avg_pool3d(x, 2), (1, 2, 4, 5, 4)),
    "adaptive max": (
        lambda x: F.adaptive_max_pool2d(x, (2, 3), return_indices=True),
        (2, 2, 7, 7),
    ),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), (1, 2, 3, 4)),
    "nearest, uneven": (lambda x: F.interpolate(x, size=(5, 7)), (1, 2, 3, 4)),
    "nearest, smaller": (lambda x: F.interpolate(x, scale_factor=0.6), (1, 2, 9, 8)),
    "nearest exact": (lambda x: F.interpolate(x, size=7, mode="nearest-exact"), (1, 2, 5)),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (1, 2, 4, 5)),
    "bilinear, corners": (
        lambda x: F.interpolate(x, size=(7, 9), mode="bilinear", align_corners=True),
        (1, 2, 4, 5),
    ),
    "bilinear, smaller": (lambda x: F.interpolate(x, size=3, mode="bilinear"), (1, 2, 8, 8)),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=1.5, mode="bicubic"), (1, 2, 6, 6)),
    "trilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), (1, 1, 2, 3, 2)),
    "linear": (lambda x: F.interpolate(x, size=9, mode="linear"), (1, 2, 4)),
    "reflected": (lambda x: F.pad(x, (2, 1, 1, 2), mode="reflect"), (1, 2, 4, 5)),
    "replicated": (lambda x: F.pad(x, (2, 1, 0, 2), mode="replicate"), (1, 2, 4, 5)),
    "circular": (lambda x: F.pad(x, (1, 1, 1, 1), mode="circular"), (1, 2, 4, 5)),
    "padded and cut": (lambda x: F.pad(x, (2, -1, -1, 2), value=3.5), (1, 2, 4, 5)),
    "channels last": (
        lambda x: F.max_pool2d(x.to(memory_format=torch.channels_last), 2),
        (2, 3, 4, 4),
    ),
}


@pytest.mark.parametrize("name", POOLS)
def test_values_and_gradients(name: str) -> None:
    function, size = POOLS[name]
    assert_agrees(function, image(*size))


def test_half_types() -> None:
    x = image(2, 3, 8, 8).detach().bfloat16()
    for pool in (lambda x: F.max_pool2d(x, 3, 2, 1), lambda x: F.avg_pool2d(x, 2)):
        assert_agrees(pool, x.clone().requires_grad_())


def test_equal_elements_and_nans() -> None:
    tied = torch.ones(1, 1, 6, 6, requires_grad=True)
    assert_agrees(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), tied)
    holed = torch.arange(36.0).reshape(1, 1, 6, 6)
    holed[0, 0, 2, 3] = float("nan")
    assert_agrees(lambda x: F.max_pool2d(x, 3, 2, 1), holed)
