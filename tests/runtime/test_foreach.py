"""Operators over lists of tensors, the forms that optimizers and gradient clipping use."""

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


def lists() -> list[list[torch.Tensor]]:
    g = torch.Generator().manual_seed(0)
    return [[torch.rand(n, 2, generator=g) + 0.5 for n in (1, 3, 4)] for _ in range(3)]


def in_place(name: str) -> Callable[..., Any]:
    """An in-place form on copies, which it returns."""

    def call(a: list[torch.Tensor], *rest: Any, **keywords: Any) -> list[torch.Tensor]:
        copies = [x.clone() for x in a]
        getattr(torch, name)(copies, *rest, **keywords)
        return copies

    return call


CALLS: dict[str, Callable[..., Any]] = {
    "add scalar": lambda a, b, c: torch._foreach_add(a, 2.0),
    "add list": lambda a, b, c: torch._foreach_add(a, b, alpha=0.5),
    "add scalars": lambda a, b, c: torch._foreach_add(a, [1, 2.5, 3]),
    "add tensor": lambda a, b, c: torch._foreach_add(a, b[0][0, 0], alpha=2),
    "sub": lambda a, b, c: torch._foreach_sub(a, b),
    "mul scalar": lambda a, b, c: torch._foreach_mul(a, 0.9),
    "mul list": lambda a, b, c: torch._foreach_mul(a, b),
    "mul tensor": lambda a, b, c: torch._foreach_mul(a, b[0].sum()),
    "mul host scalar": lambda a, b, c: torch._foreach_mul(a, torch.tensor(3.0)),
    "div": lambda a, b, c: torch._foreach_div(a, b),
    "div scalars": lambda a, b, c: torch._foreach_div(a, [2.0, 2.0, 2.0]),
    "clamp_min": lambda a, b, c: torch._foreach_clamp_min(a, 0.8),
    "clamp_max": lambda a, b, c: torch._foreach_clamp_max(a, b),
    "maximum": lambda a, b, c: torch._foreach_maximum(a, b),
    "minimum": lambda a, b, c: torch._foreach_minimum(a, [0.6, 0.7, 0.8]),
    "pow": lambda a, b, c: torch._foreach_pow(a, 2),
    "pow lists": lambda a, b, c: torch._foreach_pow(a, b),
    "pow of a number": lambda a, b, c: torch._foreach_pow(0.9, a),
    "lerp": lambda a, b, c: torch._foreach_lerp(a, b, 0.1),
    "lerp lists": lambda a, b, c: torch._foreach_lerp(a, b, c),
    "addcmul": lambda a, b, c: torch._foreach_addcmul(a, b, c, 0.1),
    "addcdiv": lambda a, b, c: torch._foreach_addcdiv(a, b, c, [0.1, 0.2, 0.3]),
    "addcdiv tensor": lambda a, b, c: torch._foreach_addcdiv(
        a, b, c, torch.tensor([0.1, 0.2, 0.3])
    ),
    "norm": lambda a, b, c: torch._foreach_norm(a),
    "norm inf": lambda a, b, c: torch._foreach_norm(a, float("inf")),
    "max": lambda a, b, c: torch._foreach_max(a),
    "unary": lambda a, b, c: [
        getattr(torch, f"_foreach_{name}")(a)
        for name in ("sqrt", "exp", "neg", "reciprocal", "rsqrt", "abs", "sign", "log", "tanh")
    ],
    "add_": lambda a, b, c: in_place("_foreach_add_")(a, b, alpha=-0.1),
    "add_ scalar": lambda a, b, c: in_place("_foreach_add_")(a, 1),
    "mul_": lambda a, b, c: in_place("_foreach_mul_")(a, 0.99),
    "lerp_": lambda a, b, c: in_place("_foreach_lerp_")(a, b, 0.2),
    "addcmul_": lambda a, b, c: in_place("_foreach_addcmul_")(a, b, c, 0.3),
    "addcdiv_": lambda a, b, c: in_place("_foreach_addcdiv_")(a, b, c, [0.1, 0.2, 0.3]),
    "sqrt_": lambda a, b, c: in_place("_foreach_sqrt_")(a),
    "zero_": lambda a, b, c: in_place("_foreach_zero_")(a),
    "copy_": lambda a, b, c: in_place("_foreach_copy_")(a, b),
}


@pytest.mark.parametrize("name", CALLS)
def test_values(name: str) -> None:
    assert_agrees(CALLS[name], *lists())


def test_mixed_dtypes_keep_their_own() -> None:
    def call(a: list[torch.Tensor]) -> Any:
        mixed = [a[0], a[1].bfloat16(), a[2].double()]
        torch._foreach_mul_(mixed, 0.5)
        return mixed, torch._foreach_norm(mixed)

    assert_agrees(call, lists()[0])


def test_one_call_is_one_node() -> None:
    tensors = [torch.ones(3, device=DEVICE) for _ in range(20)]
    before = counters.recorded_nodes
    torch._foreach_add_(tensors, 1.5)
    torch._foreach_mul_(tensors, 2.0)
    assert counters.recorded_nodes == before + 2
    assert tensors[7].tolist() == [5.0] * 3


def test_other_numbers_compile_nothing() -> None:
    tensors = [torch.ones(3, device=DEVICE) for _ in range(3)]
    rt.sync()

    def step(rate: float) -> None:
        torch._foreach_add_(tensors, tensors, alpha=-rate)
        torch._foreach_addcdiv_(tensors, tensors, tensors, [rate, rate + 2, rate + 3])
        rt.sync()

    step(0.1)
    compiles = counters.compiles
    for rate in (0.2, 1.0, 0.0):
        step(rate)
    assert counters.compiles == compiles


@pytest.mark.parametrize("foreach", [False, True])
def test_gradients_are_clipped_as_on_the_cpu(foreach: bool) -> None:
    def clip(a: list[torch.Tensor]) -> Any:
        for x in a:
            x.grad = x.detach() * 10
        total = torch.nn.utils.clip_grad_norm_(a, 1.0, foreach=foreach)
        return total, [x.grad for x in a]

    before = counters.early_syncs
    moved = [x.to(DEVICE) for x in lists()[0]]
    clip(moved)
    assert counters.early_syncs == before
    assert_agrees(clip, lists()[0])


@pytest.mark.parametrize(
    "call",
    [
        lambda a, b: torch._foreach_add(a, b, alpha=2),
        lambda a, b: torch._foreach_mul(a, [1, 2.0, 3, 4.0, 5]),
        lambda a, b: torch._foreach_addcdiv(a, a, b, torch.arange(1.0, 6.0)),
        lambda a, b: in_place("_foreach_mul_")(a[:3], b[:3]),
        lambda a, b: torch._foreach_norm(a),
    ],
)
def test_lists_in_which_shapes_recur_in_any_order(call: Callable[..., Any]) -> None:
    g = torch.Generator().manual_seed(0)
    sizes = [(2, 3), (4,), (2, 3), (), (4,)]
    dtypes = [torch.float32, torch.float64, torch.float64, torch.float32, torch.float64]
    a = [torch.rand(size, generator=g).to(d) + 1 for size, d in zip(sizes, dtypes, strict=True)]
    b = [torch.rand(size, generator=g).to(d) + 1 for size, d in zip(sizes, dtypes, strict=True)]
    a[0] = a[0].t().contiguous().t()
    assert_agrees(call, a, b)


def test_lists_of_different_lengths_are_refused_as_on_the_cpu() -> None:
    for device in ("cpu", DEVICE):
        a, b = ([torch.ones(2, device=device) for _ in range(n)] for n in (2, 3))
        with pytest.raises(RuntimeError, match=r"same length|same number"):
            torch._foreach_add(a, b)
