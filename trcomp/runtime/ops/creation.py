"""Tensors from nothing but numbers: ranges, grids, identities."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from trcomp.runtime.device import DEVICE
from trcomp.runtime.dispatch import implements
from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.registry import lowers
from trcomp.runtime.recording import Lifted, record
from trcomp.runtime.storage import output
from trcomp.runtime.transfer import to_device


def lifted(number: Any) -> Any:
    """A number as an input of the graph, but 0, 1 and -1 baked in: XLA folds those."""
    is_number = type(number) in (int, float)
    return Lifted(number) if is_number and number not in (0, 1, -1) else number


@lowers("trcomp::arange")
def _arange(ctx: Any, start: Any, step: Any, count: int) -> Any:
    dtype = np.dtype(np.int64 if jnp.issubdtype(ctx.dtype, jnp.integer) else np.float64)
    return cast(start, dtype) + cast(step, dtype) * lax.iota(dtype, count)


@implements("arange.start_step")
def arange_start_step(
    start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None = None, **options: Any
) -> torch.Tensor:
    """Numbers from `start` up to and without `end`."""
    like = torch.arange(start, end, step, dtype=dtype, device="meta")
    if not like.dtype.is_floating_point:
        start, step = int(start), int(step)
    arguments = (lifted(start), lifted(step), like.numel())
    return record("trcomp::arange", arguments, [output(tuple(like.size()), like.dtype)])[0]


@implements("arange.start")
def arange_start(start: Any, end: Any, **options: Any) -> torch.Tensor:
    """Numbers from `start` up to and without `end`, one apart."""
    return arange_start_step(start, end, 1, **options)


@implements("arange")
def arange(end: Any, **options: Any) -> torch.Tensor:
    """Numbers from 0 up to and without `end`."""
    return arange_start_step(0, end, 1, **options)


def _line(ctx: Any, start: Any, end: Any, step: Any, steps: int) -> Any:
    """Evenly spaced floats, counted from the nearer end, as torch does."""
    whole = jnp.issubdtype(ctx.dtype, jnp.integer)
    dtype = np.dtype(np.float64) if whole else ctx.opmath
    start, end = cast(start, dtype), cast(end, dtype)
    if steps == 1:
        return start.reshape(1)
    step = (end - start) / (steps - 1) if step is None else cast(step, dtype)
    place = lax.iota(np.int64, steps)
    forth = start + step * place.astype(dtype)
    back = end - step * (steps - 1 - place).astype(dtype)
    return jnp.where(place < steps // 2, forth, back)


@lowers("trcomp::linspace")
def _linspace(ctx: Any, start: Any, end: Any, step: Any, steps: int) -> Any:
    return _line(ctx, start, end, step, steps)


@lowers("trcomp::logspace")
def _logspace(ctx: Any, start: Any, end: Any, step: Any, steps: int, base: Any) -> Any:
    line = _line(ctx, start, end, step, steps)
    return jnp.power(cast(base, line.dtype), line)


def _course(start: Any, end: Any, steps: int, dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """Where a line starts and ends, and its step if that is not for the graph to compute.

    Whole numbers lie between whole ends, and are cut off, so that their step must be exact: XLA
    multiplies by the inverse where torch divides.
    """
    if dtype.is_floating_point or dtype.is_complex:
        return lifted(start), lifted(end), None
    start, end = int(start), int(end)
    return lifted(start), lifted(end), lifted((end - start) / max(steps - 1, 1))


@implements("linspace")
def linspace(
    start: Any, end: Any, steps: int, *, dtype: torch.dtype | None = None, **options: Any
) -> torch.Tensor:
    """`steps` evenly spaced numbers, both ends among them."""
    like = torch.linspace(start, end, steps, dtype=dtype, device="meta")
    out = output(tuple(like.size()), like.dtype)
    return record("trcomp::linspace", (*_course(start, end, steps, like.dtype), steps), [out])[0]


@implements("logspace")
def logspace(
    start: Any,
    end: Any,
    steps: int,
    base: float = 10.0,
    *,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> torch.Tensor:
    """`base` to the power of evenly spaced numbers."""
    like = torch.logspace(start, end, steps, base, dtype=dtype, device="meta")
    # One number alone is torch's power of the start as it is given.
    one = (lifted(start), lifted(end), None)
    course = _course(start, end, steps, like.dtype) if steps > 1 else one
    arguments = (*course, steps, lifted(base))
    return record("trcomp::logspace", arguments, [output(tuple(like.size()), like.dtype)])[0]


@lowers("trcomp::eye")
def _eye(ctx: Any, rows: int, columns: int) -> Any:
    return jnp.eye(rows, columns, dtype=ctx.dtype)


@implements("eye.m")
def eye_m(n: int, m: int, *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """Ones on the diagonal, zeros elsewhere, shape (n, m)."""
    for name, extent in (("n", n), ("m", m)):
        if extent < 0:
            raise RuntimeError(f"{name} must be greater or equal to 0, got {extent}")
    out = output((n, m), dtype or torch.get_default_dtype())
    return record("trcomp::eye", (n, m), [out])[0]


@implements("eye")
def eye(n: int, **options: Any) -> torch.Tensor:
    """The identity matrix, shape (n, n)."""
    return eye_m(n, n, **options)


@implements("_efficientzerotensor")
def zero_tensor(
    size: list[int], *, dtype: torch.dtype | None = None, **options: Any
) -> torch.Tensor:
    """A gradient that is zero everywhere: an ordinary tensor here, a constant to XLA."""
    return torch.zeros(size, dtype=dtype, device=DEVICE)


@implements("new_empty_strided")
def new_empty_strided(
    self: torch.Tensor,
    size: list[int],
    stride: list[int],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **options: Any,
) -> torch.Tensor:
    """A tensor of `self`'s dtype and device with the given strides."""
    target = self.device if device is None else device
    return torch.empty_strided(size, stride, dtype=dtype or self.dtype, device=target)


@implements("tril_indices")
def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = None, **options: Any
) -> torch.Tensor:
    """Subscripts of the lower triangle, shape (2, count)."""
    return to_device(torch.tril_indices(row, col, offset, dtype=dtype or torch.int64), DEVICE)


@implements("triu_indices")
def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = None, **options: Any
) -> torch.Tensor:
    """Subscripts of the upper triangle, shape (2, count)."""
    return to_device(torch.triu_indices(row, col, offset, dtype=dtype or torch.int64), DEVICE)


def _into(out: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    if out.size() != made.size():
        out.resize_(made.size())
    return out.copy_(made)


@implements("arange.start_out")
def arange_start_out(start: Any, end: Any, step: Any = 1, *, out: torch.Tensor) -> torch.Tensor:
    """`arange` into a tensor."""
    return _into(out, arange_start_step(start, end, step, dtype=out.dtype))


@implements("linspace.out")
def linspace_out(start: Any, end: Any, steps: int, *, out: torch.Tensor) -> torch.Tensor:
    """`linspace` into a tensor."""
    return _into(out, linspace(start, end, steps, dtype=out.dtype))


@implements("logspace.out")
def logspace_out(
    start: Any, end: Any, steps: int, base: float = 10.0, *, out: torch.Tensor
) -> torch.Tensor:
    """`logspace` into a tensor."""
    return _into(out, logspace(start, end, steps, base, dtype=out.dtype))


@implements("eye.m_out")
def eye_m_out(n: int, m: int, *, out: torch.Tensor) -> torch.Tensor:
    """`eye` into a tensor."""
    return _into(out, eye_m(n, m, dtype=out.dtype))


@implements("eye.out")
def eye_out(n: int, *, out: torch.Tensor) -> torch.Tensor:
    """`eye` into a tensor."""
    return eye_m_out(n, n, out=out)
