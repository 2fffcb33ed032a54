"""The table of lowerings: `@lowers("add.Tensor")` beside each rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

Lowering = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Rule:
    """How one operator becomes XLA.

    A rule is called as `lower(ctx, *arguments, **keywords)` with the operator's own argument names.
    Tensors arrive as jax arrays in the tensor's logical shape and its dtype, lifted numbers as
    `Scalar`, the rest as it was. It returns an array, or a tuple with one array per output; the
    result is cast to the output's dtype by the caller.
    """

    name: str
    lower: Lowering
    static: frozenset[str]
    """Names of number arguments that are baked into the graph because shapes or forms follow."""
    collective: bool = False
    """Whether it needs every rank: its graph then runs over the mesh."""
    one_dtype: bool = False
    """Whether torch refuses tensors of several dtypes; its meta kernels do not say so."""


RULES: dict[str, Rule] = {}


def lowers(
    *names: str, static: Iterable[str] = (), collective: bool = False, one_dtype: bool = False
) -> Callable[[Lowering], Lowering]:
    """Register a rule for operators by name: `add.Tensor` (aten's), or `trcomp::name` (ours).

    Raises:
        ValueError: A name has a rule already, or aten has no such operator.
    """

    def register(lower: Lowering) -> Lowering:
        for name in names:
            if name in RULES:
                raise ValueError(f"{name} has two lowerings")
            if "::" not in name:
                find(name)
            RULES[name] = Rule(name, lower, frozenset(static), collective, one_dtype)
        return lower

    return register


REFUSALS: dict[str, Callable[..., None]] = {}
"""Checks of arguments, by the name of the rule that they are for."""

EXACT_OUT = frozenset({"aminmax", "complex"})
"""Operators whose `out=` must have the very dtype of the result: the CPU casts nothing for them."""


def refuses(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a check that raises for arguments which torch's meta kernels let pass."""

    def register(check: Callable[..., None]) -> Callable[..., None]:
        REFUSALS.update(dict.fromkeys(names, check))
        return check

    return register


def find(name: str) -> torch._ops.OpOverload:
    """The aten operator `name` or `name.overload`.

    Raises:
        ValueError: There is none.
    """
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    op = getattr(packet, overload or "default", None) if packet is not None else None
    if not isinstance(op, torch._ops.OpOverload):
        raise ValueError(f"aten has no operator {name}")
    return op


def exists(name: str) -> bool:
    """Whether aten has the operator `name` in this version of torch."""
    try:
        find(name)
    except ValueError:
        return False
    return True
