"""Operators over lists of tensors: one node for all, each tensor by the functional rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from trcomp.runtime.dispatch import implements
from trcomp.runtime.ops import elementwise, reductions, unary
from trcomp.runtime.ops.registry import RULES, exists, find, lowers


def _each(ctx: Any, rule: Any, *columns: Any, **keywords: Any) -> tuple[Any, ...]:
    """Call a functional rule once per tensor; a column that is no tuple is the same for all."""
    results = []
    for i, (dtype, size) in enumerate(zip(ctx.dtypes, ctx.sizes, strict=True)):
        row = [column[i] if isinstance(column, tuple) else column for column in columns]
        results.append(rule(replace(ctx, dtypes=(dtype,), sizes=(size,)), *row, **keywords))
    return tuple(results)


def _register(name: str, rule: Any, static: tuple[str, ...] = ()) -> None:
    @lowers(name, static=static)
    def lower(ctx: Any, *columns: Any, **keywords: Any) -> Any:
        return _each(ctx, rule, *columns, **keywords)


def _register_overloads(name: str, overloads: Sequence[str], rule: Any) -> None:
    for overload in overloads:
        if exists(f"_foreach_{name}.{overload}"):
            _register(f"_foreach_{name}.{overload}", rule)


_OVERLOADS = ("Scalar", "List", "ScalarList", "Tensor")

for _name, _rule in {
    "add": elementwise.add,
    "sub": elementwise.sub,
    "mul": elementwise.mul,
    "div": elementwise.div,
    "clamp_min": elementwise.clamp_min,
    "clamp_max": elementwise.clamp_max,
    "maximum": elementwise.maximum,
    "minimum": elementwise.minimum,
    "lerp": elementwise.lerp,
}.items():
    _register_overloads(_name, _OVERLOADS, _rule)

for _name, _rule in {"addcmul": elementwise.addcmul, "addcdiv": elementwise.addcdiv}.items():
    _register_overloads(_name, ("Scalar", "ScalarList"), _rule)

_register_overloads("pow", ("List", "ScalarAndTensor"), elementwise.pow_tensor)
for _overload in ("Scalar", "ScalarList"):
    _register(f"_foreach_pow.{_overload}", elementwise.pow_scalar, static=("exponent",))

for _name in (*unary.FUNCTIONS, *unary.ROUNDINGS, "abs", "sign", "frac"):
    if exists(f"_foreach_{_name}"):
        _register(f"_foreach_{_name}", RULES[_name].lower)
_register("_foreach_max", reductions.max_all)
_register("_foreach_norm.Scalar", reductions.linalg_vector_norm, static=("ord",))


@implements("_foreach_zero_")
def foreach_zero_(self: Sequence[torch.Tensor]) -> None:
    """Set every tensor to zero."""
    for tensor in self:
        tensor.zero_()


@implements("_foreach_copy_")
def foreach_copy_(
    self: Sequence[torch.Tensor], src: Sequence[torch.Tensor], non_blocking: bool = False
) -> None:
    """Copy each tensor into its counterpart."""
    for target, source in zip(self, src, strict=True):
        target.copy_(source, non_blocking)


def _by_numbers(name: str) -> None:
    """An overload whose scalars are a CPU tensor, as the overload that takes a list of numbers."""
    in_list = find(f"{name}.ScalarList")

    @implements(f"{name}.Tensor")
    def kernel(
        self: Sequence[torch.Tensor],
        tensor1: Sequence[torch.Tensor],
        tensor2: Sequence[torch.Tensor],
        scalars: torch.Tensor,
    ) -> Any:
        return in_list(self, tensor1, tensor2, scalars.tolist())


for _name in ("addcmul", "addcdiv"):
    _by_numbers(f"_foreach_{_name}")
    _by_numbers(f"_foreach_{_name}_")
