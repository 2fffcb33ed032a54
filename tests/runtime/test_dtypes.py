"""Result dtypes are torch's, whatever meets: tensors, 0-dim tensors, numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.agreement import assert_alike, on_device
from trcomp.runtime.device import DEVICE

pytestmark = pytest.mark.runtime

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
]

OPERATORS: list[Callable[..., Any]] = [
    torch.add,
    torch.mul,
    torch.div,
    torch.eq,
    torch.lt,
    torch.maximum,
    lambda a, b: torch.where(on(a, b), a, b),
    lambda a, b: torch.stack([torch.as_tensor(a, device=device_of(a, b))] * 2) + b,
]


def device_of(*operands: Any) -> torch.device:
    """The device of the first tensor."""
    return next(o.device for o in operands if isinstance(o, torch.Tensor))


def on(*operands: Any) -> torch.Tensor:
    """A condition on the operands' device."""
    return torch.tensor([True, False], device=device_of(*operands))


def tensors(dtype: torch.dtype) -> st.SearchStrategy[torch.Tensor]:
    """One or no dimension, values that every dtype holds."""
    full = torch.tensor([1, 0]).to(dtype)
    return st.sampled_from([full, full[0].clone()])


operands = st.sampled_from(DTYPES).flatmap(tensors)
numbers = st.sampled_from([True, 2, 0.5, 1.0])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(OPERATORS), operands, st.one_of(operands, numbers), st.booleans())
def test_results_have_torchs_dtype(
    operator: Callable[..., Any], left: torch.Tensor, right: Any, swapped: bool
) -> None:
    pair = (right, left) if swapped else (left, right)
    if operator is torch.maximum and not isinstance(right, torch.Tensor):
        return
    try:
        expected = operator(*pair)
    except (TypeError, RuntimeError):
        return
    made = operator(*map(on_device, pair))
    assert (made.dtype, made.size()) == (expected.dtype, expected.size())


def test_values_after_promotion_agree() -> None:
    made, due = [], []
    for left in DTYPES:
        for right in DTYPES:
            a, b = torch.tensor([3, 0, 1]).to(left), torch.tensor(2).to(right)
            for operator in (torch.add, torch.mul, torch.div, torch.gt):
                due.append(operator(a, b))
                made.append(operator(on_device(a), on_device(b)))
    assert_alike(made, due)


def test_a_host_scalar_tensor_counts_as_a_0_dim_tensor() -> None:
    a = torch.ones(2, dtype=torch.bfloat16)
    for scalar in (torch.tensor(1.5, dtype=torch.float64), torch.tensor(2), torch.tensor(True)):
        assert_alike(on_device(a) * scalar, a * scalar)
        assert_alike(on_device(a.int()) + scalar, a.int() + scalar)


def test_casts_agree() -> None:
    values = torch.tensor([0.0, -0.0, 1.9, -1.9, 100.5, 0.1])
    made, due = [], []
    for source in DTYPES:
        for target in DTYPES:
            start = values.abs().to(source)
            due.append(start.to(target))
            made.append(on_device(start).to(target))
    assert_alike(made, due)


def test_the_default_dtype_is_followed() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        whole = torch.arange(3, device=DEVICE)
        assert (whole / 2).dtype == whole.mul(0.5).dtype == whole.sin().dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_views_of_another_dtype_share_bytes() -> None:
    def twist(a: torch.Tensor) -> list[torch.Tensor]:
        a = a.clone()
        bits = a.view(torch.int32)
        bits[0] = 0
        return [a, bits, a.view(torch.bfloat16), a.view(torch.uint8)]

    values = torch.tensor([1.0, -2.5, 3e8])
    assert_alike(twist(on_device(values)), twist(values))


def test_complex_numbers_pass_through_arithmetic() -> None:
    def turn(a: torch.Tensor) -> list[torch.Tensor]:
        b = a * (1 + 2j) + a.conj()
        c = torch.zeros_like(a).copy_(a.conj())
        c = c + a.conj().clone() + a.conj().imag * 2
        return [
            b,
            b.abs(),
            b.angle(),
            torch.view_as_real(b),
            b.real,
            b / (1 - 1j),
            b.sum(),
            c,
            a.conj(),
        ]

    values = torch.tensor([1 + 1j, -2j, 0.5])
    assert_alike(turn(on_device(values)), turn(values))
