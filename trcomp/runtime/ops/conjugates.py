"""Kernels for operators that torch hands tensors still to be conjugated or negated.

A conjugate in torch is a view with a mark. Most operators see it after torch has computed it; those
whose own CPU and CUDA kernels can fold it into the work get it marked. XLA folds it by itself, so
here it is computed first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from trcomp.runtime.dispatch import Recorder, implement, implements, variants
from trcomp.runtime.ops.registry import RULES, find

Kernel = Callable[..., Any]


def _gets_marked(name: str) -> bool:
    return any(
        torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key)
        for key in ("Conjugate", "Negative")
    )


def _resolve(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return argument.resolve_conj().resolve_neg()
    return argument


def _is_marked(argument: Any) -> bool:
    return isinstance(argument, torch.Tensor) and (argument.is_conj() or argument.is_neg())


def _resolved(kernel: Kernel, num_written: int = 0) -> Kernel:
    """`kernel` on plain tensors; what it writes is handed over as it is."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if any(map(_is_marked, args)):
            args = (*args[:num_written], *tree_map(_resolve, args[num_written:]))
        return kernel(*args, **kwargs)

    return call


@implements("conj_physical_")
def conj_physical_(self: torch.Tensor) -> torch.Tensor:
    """Conjugate every element where it lies."""
    return self.copy_(torch.ops.aten._conj_physical(self)) if self.is_complex() else self


def register() -> None:
    """Register such operators of the table, and their in-place and `out=` forms."""
    for name, rule in RULES.items():
        if "::" in name or not _gets_marked(name):
            continue
        op = find(name)
        implement(op, _resolved(Recorder(op, rule)))
        for target in variants(op):
            in_place = not any(argument.is_out for argument in target._schema.arguments)
            kernel = Recorder(op, rule, target)
            implement(target, _resolved(kernel, num_written=int(in_place)))
