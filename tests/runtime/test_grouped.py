"""Matrix products by group: values and gradients, and no read of the group sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.runtime.agreement import assert_agrees
from trcomp.runtime.device import DEVICE
from trcomp.runtime.metrics import counters

pytestmark = pytest.mark.runtime

OFFSETS = torch.tensor([3, 9, 9, 16], dtype=torch.int32)

FORMS: dict[str, Callable[..., torch.Tensor]] = {
    "rows": lambda a, b, c, offs: torch._grouped_mm(a, b, offs=offs),
    "columns": lambda a, b, c, offs: torch._grouped_mm(c, a.t(), offs=offs),
    "contracted": lambda a, b, c, offs: torch._grouped_mm(a.t(), a, offs=offs),
    "batched": lambda a, b, c, offs: torch._grouped_mm(b, c),
}


def operands(dtype: torch.dtype) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    sizes = ((16, 8), (4, 8, 16), (4, 16, 8))
    return [torch.randn(size, generator=g).to(dtype) for size in sizes]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values(name: str, dtype: torch.dtype) -> None:
    assert_agrees(FORMS[name], *operands(dtype), OFFSETS)


def test_gradients_of_experts() -> None:
    def square(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(a, b, offs=offs).square()

    a, b, _ = operands(torch.float32)
    assert_agrees(square, a.requires_grad_(), b.requires_grad_(), OFFSETS)


def test_group_sizes_are_not_read() -> None:
    a, b, _ = (x.to(DEVICE) for x in operands(torch.float32))
    before = counters.early_syncs
    torch._grouped_mm(a, b, offs=OFFSETS.to(DEVICE))
    assert counters.early_syncs == before


def test_sizes_that_do_not_fit_are_refused() -> None:
    a, b, _ = (x.to(DEVICE) for x in operands(torch.float32))
    with pytest.raises(RuntimeError, match="inner sizes"):
        torch._grouped_mm(a.t(), b, offs=OFFSETS.to(DEVICE))
    with pytest.raises(RuntimeError, match="without offs"):
        torch._grouped_mm(a, b)
