"""Pointwise operators at the edges: infinities, signed zeros, integer division, wrapping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import trcomp.runtime as rt
from tests.runtime.agreement import assert_agrees
from trcomp.runtime.device import DEVICE
from trcomp.runtime.metrics import counters

pytestmark = pytest.mark.runtime
INF, NAN = float("inf"), float("nan")

SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e30, -1e30, INF, -INF, NAN])
INTEGERS = torch.tensor([0, 1, -1, 2, -2, 7, -7, 100, -128, 127])


def both_ways(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Every pair of values, shapes (n, 1) and (n,)."""
    return values[:, None], values


def all_of(*functions: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Functions to call on the same arguments, in one executable."""
    return lambda *arguments: [function(*arguments) for function in functions]


def test_floats_meet_infinities_and_nans() -> None:
    def divide(mode: str | None) -> Callable[..., torch.Tensor]:
        return lambda a, b: torch.div(a, b, rounding_mode=mode)

    assert_agrees(
        all_of(
            torch.add,
            torch.mul,
            torch.div,
            divide("trunc"),
            divide("floor"),
            torch.floor_divide,
            torch.fmod,
            torch.maximum,
            torch.minimum,
            torch.fmax,
            torch.fmin,
            torch.copysign,
            torch.atan2,
            torch.hypot,
            torch.xlogy,
            torch.eq,
            torch.lt,
            torch.ge,
            torch.logaddexp,
            torch.heaviside,
        ),
        *both_ways(SPECIAL),
    )


def test_remainders_have_the_divisors_sign() -> None:
    finite = SPECIAL[SPECIAL.abs() < 1e3]
    assert_agrees(all_of(torch.remainder, torch.fmod), *both_ways(finite))


def test_powers() -> None:
    def power(exponent: float) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda a: a**exponent

    exponents = (0, 1, 2, 3, -1, -2, 0.5, -0.5, 2.5, 17, -3.0)
    assert_agrees(all_of(*map(power, exponents), lambda a: 2.0**a), SPECIAL)
    assert_agrees(torch.pow, *both_ways(SPECIAL))
    assert_agrees(all_of(*map(power, (0, 1, 2, 5)), lambda a: 3 ** a.abs()), INTEGERS)
    assert_agrees(torch.pow, INTEGERS[:, None].int(), torch.arange(9, dtype=torch.int32))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8])
def test_integers_divide_shift_and_wrap(dtype: torch.dtype) -> None:
    values = INTEGERS.to(dtype)
    divisors = values[values != 0]
    shifts = torch.tensor([0, 1, 3, 7], dtype=dtype)
    assert_agrees(all_of(torch.add, torch.sub, torch.mul, torch.bitwise_xor), *both_ways(values))
    assert_agrees(
        all_of(
            torch.div,
            torch.floor_divide,
            torch.remainder,
            torch.fmod,
            lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        ),
        values[:, None],
        divisors,
    )
    assert_agrees(
        all_of(torch.bitwise_left_shift, torch.bitwise_right_shift), values[:, None], shifts
    )


UNARY = """
    exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos
    atan sinh cosh tanh asinh acosh atanh sqrt rsqrt reciprocal erf erfc
    erfinv sigmoid floor ceil round trunc frac abs neg sign sgn isnan
    isinf isfinite signbit nan_to_num relu lgamma
"""


def test_functions_of_one_operand() -> None:
    names = UNARY.split()
    moderate = torch.where(SPECIAL.abs() == 1e30, SPECIAL.sign() * 3, SPECIAL)
    assert_agrees(all_of(*(getattr(torch, name) for name in names)), moderate)
    assert_agrees(
        all_of(*(getattr(torch, n) for n in names if n not in ("frac", "nan_to_num"))), INTEGERS
    )


def test_clamps_where_and_masks() -> None:
    assert_agrees(
        all_of(
            lambda a: a.clamp(-1, 1),
            lambda a: a.clamp(min=0.5),
            lambda a: a.clamp(max=torch.tensor(2.0)),
            lambda a: a.clamp(3, -3),
            lambda a: torch.where(a > 0, a, 0),
            lambda a: torch.where(a > 0, 1.0, -a),
            lambda a: a.masked_fill(a.isnan(), -1),
            lambda a: torch.lerp(a, a.flip(0), 0.25),
            lambda a: torch.addcmul(a, a, a, value=0.5),
            lambda a: torch.addcdiv(a, a, a + 1, value=-2),
            lambda a: a.nan_to_num(1.0, 2.0, -2.0),
        ),
        SPECIAL,
    )


def test_half_types_round_once() -> None:
    values = torch.randn(4, 300, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.bfloat16, torch.float16):
        assert_agrees(
            all_of(
                lambda a: torch.addcmul(a[0], a[1], a[2], value=0.3),
                lambda a: torch.lerp(a[0], a[1], 0.3),
                lambda a: torch.sigmoid(a),
                lambda a: a[0] + a[1] * 2.5,
            ),
            values.to(dtype),
        )


def test_in_place_keeps_dtype_and_aliases() -> None:
    def write(a: torch.Tensor) -> list[torch.Tensor]:
        a = a.clone()
        row = a[1]
        a.add_(2).mul_(1.5).sub_(a, alpha=0.5).pow_(2).clamp_(max=50)
        row.div_(3).neg_().exp_()
        a.t().floor_().masked_fill_(a.t() == 0, 7)
        return [a, row]

    assert_agrees(write, torch.arange(6.0).reshape(2, 3))
    assert_agrees(lambda a: a.clone().add_(1).mul_(3).floor_divide_(2), torch.arange(6).int())
    assert_agrees(lambda a, b: a.half().add_(b), torch.arange(3.0), torch.ones(3))


def test_out_receives_the_result() -> None:
    def into(a: torch.Tensor) -> list[torch.Tensor]:
        out, resized = torch.empty_like(a), torch.empty(0, device=a.device)
        strided = torch.zeros(3, 2, device=a.device).t()
        torch.add(a, 1, out=out)
        torch.mul(a, 2, out=resized)
        torch.exp(a, out=strided)
        return [out, resized, strided]

    assert_agrees(into, torch.arange(6.0).reshape(2, 3))


def test_another_number_compiles_nothing() -> None:
    x = torch.ones(4, device=DEVICE)
    rt.sync()

    def step(rate: float) -> list[float]:
        y = x.mul(rate).add(rate * 2).clamp(min=rate).addcdiv(x, x, value=rate)
        y = torch.where(y > rate, y, rate).masked_fill(y == rate, rate)
        rt.sync()
        return y.cpu().tolist()  # type: ignore[no-any-return]

    step(0.1)
    compiles = counters.compiles
    for rate in (0.2, 0.0, 1.0, -1.0):
        step(rate)
    assert counters.compiles == compiles
    assert step(2.0) == [8.0] * 4


def test_operands_of_another_device_are_refused() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device=DEVICE) + torch.ones(3)
