"""How exact products of float32 are: torch's switches, as XLA's precisions.

`torch.set_float32_matmul_precision`, `torch.backends.fp32_precision` and its kin below `cuda` and
`cudnn`, and `allow_tf32` write what is read here. XLA by itself would take TF32 wherever a GPU has
it; torch does so in convolutions and recurrent layers alone, unless the script says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, Literal, TypeVar

import torch

Kind = Literal["matmul", "conv", "rnn"]
Rule = TypeVar("Rule", bound=Callable[..., Any])

_KINDS: tuple[Kind, ...] = ("matmul", "conv", "rnn")
_EXACT, _FAST = "float32", "tensorfloat32"


def of(kind: Kind) -> str:
    """`float32`, or `tensorfloat32` where that may do; jax's words."""
    allowed = torch._C._get_fp32_precision_getter("cuda", kind)
    return _EXACT if allowed in ("none", "ieee") else _FAST


def chosen() -> tuple[str, ...]:
    """All of them: programs that differ in these are different programs."""
    return tuple(map(of, _KINDS))


def traced(kind: Kind) -> AbstractContextManager[None]:
    """What is traced meanwhile has products of this kind."""
    import jax  # A graph's key asks this module too, also in processes without JAX.

    return jax.default_matmul_precision(of(kind))


def products_of(kind: Kind) -> Callable[[Rule], Rule]:
    """Mark a rule whose products are of another kind than `matmul`."""

    def mark(rule: Rule) -> Rule:
        @wraps(rule)
        def marked(*args: Any, **kwargs: Any) -> Any:
            with traced(kind):
                return rule(*args, **kwargs)

        return marked  # type: ignore[return-value]

    return mark
