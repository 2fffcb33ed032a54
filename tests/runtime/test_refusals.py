"""Sizes, dtypes and numbers that the CPU's kernels refuse are refused at the same line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from trcomp.runtime.device import DEVICE

pytestmark = pytest.mark.runtime

ones = torch.ones

WRONG: dict[str, Callable[[Any], Any]] = {
    "complex of integers": lambda d: torch.complex(
        ones(2, device=d), ones(2, dtype=torch.int32, device=d)
    ),
    "complex of two dtypes": lambda d: torch.complex(
        ones(2, device=d), ones(2, dtype=torch.float64, device=d)
    ),
    "masked_scatter by bytes": lambda d: ones(2, device=d).masked_scatter(
        ones(2, dtype=torch.uint8, device=d), ones(2, device=d)
    ),
    "as_strided_scatter beyond the end": lambda d: torch.as_strided_scatter(
        ones(4, 4, device=d), ones(2, 2, device=d), (2, 2), (200, 200)
    ),
    "convolution with a negative padding": lambda d: F.conv2d(
        ones(1, 1, 4, 4, device=d), ones(1, 1, 2, 2, device=d), padding=-1
    ),
    "convolution with no stride": lambda d: F.conv1d(
        ones(1, 1, 4, device=d), ones(1, 1, 2, device=d), stride=0
    ),
    "convolution with no dilation": lambda d: F.conv3d(
        ones(1, 1, 4, 4, 4, device=d), ones(1, 1, 2, 2, 2, device=d), dilation=0
    ),
    "index_add of another shape": lambda d: ones(3, 2, device=d).index_add(
        0, torch.tensor([0, 1], device=d), ones(2, 5, device=d)
    ),
    "bucketize by a table": lambda d: torch.bucketize(ones(2, device=d), ones(2, 2, device=d)),
    "embedding of a vector": lambda d: torch.embedding(
        ones(3, device=d), torch.tensor([1], device=d)
    ),
    "maximum of nothing": lambda d: ones(5, 0, device=d).amax(1),
    "the maximum of nothing": lambda d: ones(5, 0, device=d).max(),
    "the minimum of nothing": lambda d: ones(5, 0, device=d).min(),
    "maxima of nothing": lambda d: ones(5, 0, device=d).max(1),
    "minima of nothing": lambda d: ones(5, 0, device=d).min(-1),
    "medians of nothing": lambda d: ones(5, 0, device=d).median(1),
    "the mode of nothing": lambda d: ones(5, 0, device=d).mode(),
    "extremes of nothing": lambda d: ones(5, 0, device=d).aminmax(dim=1),
    "maxima of too many dimensions": lambda d: ones([1] * 65).to(d).amax(0),
    "a maximum of too many dimensions": lambda d: ones(1, device=d).expand([1] * 65).amax(0),
    "eye of a negative size": lambda d: torch.eye(2, -3, device=d),
    "multinomial of a cube": lambda d: torch.multinomial(ones(1, 2, 3, device=d), 1),
    "multinomial of integers": lambda d: torch.multinomial(ones(2, dtype=torch.int64, device=d), 1),
    "multinomial of no sample": lambda d: torch.multinomial(ones(2, device=d), 0),
    "multinomial of too many": lambda d: torch.multinomial(ones(2, device=d), 3),
    "cauchy without a width": lambda d: ones(2, device=d).cauchy_(0, 0),
    "log_normal without a width": lambda d: ones(2, device=d).log_normal_(0, 0),
    "a result of another kind": lambda d: torch.add(
        ones(2, device=d), 1, out=torch.empty(2, dtype=torch.int64, device=d)
    ),
    "a reduction into another dtype": lambda d: torch.amax(
        ones(2, 2, device=d), 0, out=torch.empty(2, dtype=torch.int32, device=d)
    ),
    "a complex result of another width": lambda d: torch.complex(
        ones(2, device=d), ones(2, device=d), out=torch.empty(2, dtype=torch.complex128, device=d)
    ),
    "extremes in another dtype": lambda d: torch.aminmax(
        ones(2, device=d), out=(torch.empty((), dtype=torch.float64, device=d),) * 2
    ),
    "a result over itself": lambda d: torch.gather(
        ones(3, device=d),
        0,
        torch.tensor([0, 1, 2], device=d),
        out=torch.empty(1, device=d).expand(3),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_the_cpu_refuses_is_refused(name: str) -> None:
    with pytest.raises((RuntimeError, IndexError)) as due:
        WRONG[name]("cpu")
    with pytest.raises(type(due.value)):
        WRONG[name](DEVICE)


def test_results_go_into_wider_dtypes_again_and_again() -> None:
    for _ in range(2):
        wide = torch.empty(2, dtype=torch.float64, device=DEVICE)
        assert torch.add(ones(2, device=DEVICE), 1, out=wide) is wide
        assert wide.tolist() == [2, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_the_median_of_nothing_is_what_the_cpu_says(dtype: torch.dtype) -> None:
    nothing = torch.ones(5, 0, dtype=dtype)
    torch.testing.assert_close(nothing.to(DEVICE).median().cpu(), nothing.median(), equal_nan=True)
