"""torch dtypes and jax dtypes, and torch's type promotion over what a rule receives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from trcomp.errors import UnsupportedError


class _Dtypes(dict[torch.dtype, np.dtype[Any]]):
    def __missing__(self, dtype: torch.dtype) -> np.dtype[Any]:
        raise UnsupportedError(
            f"got a tensor of {dtype}; the xla device has no such numbers.",
            f"Convert it to one of {', '.join(str(known)[6:] for known in self)}.",
        )


_FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")

TO_JAX = _Dtypes()
TO_JAX |= {
    torch.bool: np.dtype("bool"),
    torch.uint8: np.dtype("uint8"),
    torch.uint16: np.dtype("uint16"),
    torch.uint32: np.dtype("uint32"),
    torch.uint64: np.dtype("uint64"),
    torch.int8: np.dtype("int8"),
    torch.int16: np.dtype("int16"),
    torch.int32: np.dtype("int32"),
    torch.int64: np.dtype("int64"),
    torch.bfloat16: np.dtype(jnp.bfloat16),
    torch.float16: np.dtype("float16"),
    torch.float32: np.dtype("float32"),
    torch.float64: np.dtype("float64"),
    torch.complex64: np.dtype("complex64"),
    torch.complex128: np.dtype("complex128"),
}
TO_JAX |= {getattr(torch, name): np.dtype(getattr(jnp, name)) for name in _FLOAT8}
TO_TORCH = {value: key for key, value in TO_JAX.items()}


@dataclass(frozen=True)
class Scalar:
    """A number that entered the graph as an input: its value is traced, its kind is known.

    `kind` is float, int or bool for a Python number; the dtype of a 0-dim CPU tensor otherwise.
    """

    value: Any
    kind: type | torch.dtype


def opmath(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which torch computes what it returns in `dtype`: float32 for the half types."""
    return np.dtype(np.float32) if dtype in (np.float16, jnp.bfloat16) else dtype


Operand = Any
"""A jax array, a Scalar, or a Python number baked into the graph."""


def cast(operand: Operand, dtype: np.dtype[Any]) -> jax.Array:
    """`operand` as an array of `dtype`, converting as torch does."""
    value = operand.value if isinstance(operand, Scalar) else operand
    if not isinstance(value, jax.Array):
        return jnp.asarray(value, dtype)
    if value.dtype == dtype:
        return value
    if jnp.issubdtype(value.dtype, jnp.complexfloating) and not jnp.issubdtype(
        dtype, jnp.complexfloating
    ):
        value = lax.real(value)
    if dtype == np.bool_:
        return value != 0
    return lax.convert_element_type(value, dtype)


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """The dtype of two operand classes: the lower one counts only if it is of a higher kind."""
    if higher is None or lower is None:
        return higher or lower
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return higher.to_complex() if lower.is_complex else higher
    if higher is torch.bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher


def _number_dtype(kind: type) -> torch.dtype:
    default = torch.get_default_dtype()
    return {bool: torch.bool, int: torch.int64, float: default, complex: default.to_complex()}[kind]


def promote(*operands: Operand) -> np.dtype[Any]:
    """The dtype in which torch would compute an elementwise operator on these operands.

    Tensors with dimensions come first, then 0-dim tensors, then numbers (the rule is
    `torch.result_type`'s); None is passed over.
    """
    classes: list[torch.dtype | None] = [None, None, None]
    for operand in operands:
        if operand is None:
            continue
        if isinstance(operand, Scalar):
            zero_dim = isinstance(operand.kind, torch.dtype)
            place = 1 if zero_dim else 2
            dtype = operand.kind if isinstance(operand.kind, torch.dtype) else None
            dtype = dtype or _number_dtype(operand.kind)  # type: ignore[arg-type]
        elif isinstance(operand, jax.Array):
            place = 0 if operand.ndim else 1
            dtype = TO_TORCH[np.dtype(operand.dtype)]
        else:
            place, dtype = 2, _number_dtype(type(operand))
        known = classes[place]
        classes[place] = dtype if known is None else torch.promote_types(known, dtype)
    result = _combine(classes[0], _combine(classes[1], classes[2]))
    if result is None:
        raise TypeError("no operand to take a dtype from")
    return TO_JAX[result]
