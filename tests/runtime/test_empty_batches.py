"""Batches of nothing, as a last batch may be: results and gradients are sized as on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.runtime.agreement import assert_alike
from trcomp.runtime.device import DEVICE

pytestmark = [pytest.mark.runtime, pytest.mark.filterwarnings("ignore:std")]


class Make:
    """Makes tensors on one device."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(self, *size: int) -> Tensor:
        """Ones that need a gradient."""
        return torch.ones(size, device=self.device, requires_grad=True)

    def indices(self, *size: int) -> Tensor:
        """Zeros to index with."""
        return torch.zeros(size, dtype=torch.int64, device=self.device)


COMPUTE: dict[str, Callable[[Make], Tensor]] = {
    "linear without features": lambda m: F.linear(m(3, 0), m(2, 0), m(2)),
    "linear without rows": lambda m: F.linear(m(0, 3), m(2, 3)),
    "linear without results": lambda m: F.linear(m(4, 3), m(0, 3)),
    "linear of sequences": lambda m: F.linear(m(2, 0, 3), m(2, 3)),
    "convolution": lambda m: F.conv2d(m(0, 3, 8, 8), m(4, 3, 3, 3)),
    "convolution of sequences": lambda m: F.conv1d(m(0, 3, 8), m(4, 3, 3)),
    "depthwise convolution": lambda m: F.conv2d(m(0, 3, 8, 8), m(3, 1, 3, 3), groups=3),
    "transposed convolution": lambda m: F.conv_transpose2d(m(0, 3, 8, 8), m(3, 4, 3, 3)),
    "maxima": lambda m: F.max_pool2d(m(0, 3, 8, 8), 2),
    "maxima and places": lambda m: F.max_pool2d(m(0, 3, 8, 8), 2, return_indices=True)[0],
    "means": lambda m: F.avg_pool2d(m(0, 3, 8, 8), 2),
    "adaptive maxima": lambda m: F.adaptive_max_pool2d(m(0, 3, 8, 8), 3),
    "adaptive means": lambda m: F.adaptive_avg_pool2d(m(0, 3, 8, 8), 3),
    "fractional maxima": lambda m: F.fractional_max_pool2d(m(0, 3, 8, 8), 2, 3),
    "unpooling": lambda m: F.max_unpool2d(m(0, 3, 2, 2), m.indices(0, 3, 2, 2), 2),
    "upsampling": lambda m: F.interpolate(m(0, 3, 4, 4), scale_factor=2),
    "layer norm": lambda m: F.layer_norm(m(0, 3), (3,)),
    "group norm": lambda m: F.group_norm(m(0, 4, 2, 2), 2),
    "embedding": lambda m: F.embedding(m.indices(0), m(3, 4)),
    "embedding bags": lambda m: F.embedding_bag(m.indices(0), m(3, 4), m.indices(0)),
    "cross entropy": lambda m: F.cross_entropy(m(0, 4), m.indices(0), reduction="sum"),
    "margins": lambda m: F.multi_margin_loss(m(0, 3), m.indices(0), reduction="none"),
    "attention": lambda m: F.scaled_dot_product_attention(*(m(0, 2, 3, 4) for _ in range(3))),
    "products": lambda m: torch.bmm(m(0, 3, 4), m(0, 4, 2)),
    "products over nothing": lambda m: torch.bmm(m(2, 3, 0), m(2, 0, 2)),
    "distances": lambda m: torch.cdist(m(2, 0, 3), m(2, 4, 3)),
    "distances over nothing": lambda m: torch.cdist(m(2, 5, 0), m(2, 4, 0)),
    "places in order": lambda m: torch.searchsorted(m(0, 3), m(0, 2)),
    "taking": lambda m: m(3).take(m.indices(0)),
    "patches": lambda m: F.unfold(m(0, 3, 4, 4), 2),
    "folding": lambda m: F.fold(m(0, 12, 9), (4, 4), 2),
    "running sums": lambda m: m(0, 3).cumsum(0),
    "sorting": lambda m: m(0, 3).sort(0)[0],
    "the largest": lambda m: m(0, 3).topk(2)[0],
    "softmax": lambda m: m(3, 0).softmax(1),
    "deviations": lambda m: m(0, 3).std(1),
    "scattering": lambda m: m(3, 4).scatter(0, m.indices(0, 4), 1.0),
    "shuffled pixels": lambda m: F.pixel_shuffle(m(0, 4, 2, 2), 2),
    "reflection": lambda m: F.pad(m(0, 3, 4), (1, 1), mode="reflect"),
    "a slope per channel": lambda m: F.prelu(m(0, 3), m(3)),
}


@pytest.mark.parametrize("name", COMPUTE)
def test_nothing_has_the_sizes_that_it_has_on_the_cpu(name: str) -> None:
    made = COMPUTE[name](Make(DEVICE))
    assert_alike(made, COMPUTE[name](Make("cpu")))
    if made.requires_grad:
        made.sum().backward()
