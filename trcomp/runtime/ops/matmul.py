"""Products of matrices; `linear` is kept whole, in the forms that XLA runs well."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import torch

from trcomp.runtime.dispatch import check_one_dtype, implements, to_meta
from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.registry import lowers
from trcomp.runtime.recording import record
from trcomp.runtime.storage import output


def product(left: Any, right: Any, dtype: Any) -> Any:
    """Batched matrix product in `dtype`; integers and bools as torch's CPU kernels have them."""
    return jnp.matmul(cast(left, dtype), cast(right, dtype))


def _is_one(number: Any) -> bool:
    return type(number) is int and number == 1


def _scaled(array: Any, factor: Any, dtype: Any) -> Any:
    return array if _is_one(factor) else array * cast(factor, dtype)


@lowers("mm", one_dtype=True)
def mm(ctx: Any, self: Any, mat2: Any) -> Any:
    return product(self, mat2, ctx.dtype)


@lowers("bmm")
def bmm(ctx: Any, self: Any, mat2: Any) -> Any:
    return product(self, mat2, ctx.dtype)


@lowers("mv", one_dtype=True)
def mv(ctx: Any, self: Any, vec: Any) -> Any:
    return product(self, vec, ctx.dtype)


@lowers("dot")
def dot(ctx: Any, self: Any, tensor: Any) -> Any:
    return product(self, tensor, ctx.dtype)


@lowers("vdot")
def vdot(ctx: Any, self: Any, other: Any) -> Any:
    return product(jnp.conj(self), other, ctx.dtype)


def _added(ctx: Any, self: Any, made: Any, beta: Any, alpha: Any) -> Any:
    made = _scaled(made, alpha, ctx.dtype)
    # beta = 0 drops `self` even where it is NaN; a lifted beta is compared in the graph.
    if type(beta) is int and beta == 0:
        return made
    kept = _scaled(cast(self, ctx.dtype), beta, ctx.dtype)
    if not _is_one(beta):
        factor = cast(beta, ctx.dtype)
        kept = jnp.where(factor == 0, jnp.zeros_like(kept), kept)
    return kept + made


@lowers("addmm", one_dtype=True)
def addmm(ctx: Any, self: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _added(ctx, self, product(mat1, mat2, ctx.dtype), beta, alpha)


@lowers("addmv", one_dtype=True)
def addmv(ctx: Any, self: Any, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _added(ctx, self, product(mat, vec, ctx.dtype), beta, alpha)


@lowers("baddbmm", one_dtype=True)
def baddbmm(ctx: Any, self: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _added(ctx, self, product(batch1, batch2, ctx.dtype), beta, alpha)


@lowers("addbmm", one_dtype=True)
def addbmm(ctx: Any, self: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    made = product(batch1, batch2, ctx.dtype).sum(0)
    return _added(ctx, self, made, beta, alpha)


@lowers("addr")
def addr(ctx: Any, self: Any, vec1: Any, vec2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    made = cast(vec1, ctx.dtype)[:, None] * cast(vec2, ctx.dtype)[None, :]
    return _added(ctx, self, made, beta, alpha)


def _rows(array: Any) -> Any:
    """All dimensions but the last as one."""
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


@lowers("trcomp::linear")
def _linear(ctx: Any, input: Any, weight: Any, bias: Any) -> Any:
    # Rows flattened to two dimensions: on the CPU a product over three runs 1.5 times longer.
    rows = _rows(input) @ weight.T
    if bias is not None:
        rows = rows + bias
    return rows.reshape(ctx.size)


@lowers("trcomp::linear_backward")
def _linear_backward(
    ctx: Any, self: Any, grad_output: Any, weight: Any, output_mask: tuple[bool, ...]
) -> Any:
    grad = _rows(grad_output)
    made = []
    if output_mask[0]:
        made.append((grad @ jnp.conj(weight)).reshape(self.shape))
    if output_mask[1]:
        # x.T @ g, then transposed: on the CPU g.T @ x runs 1.5 times longer.
        made.append((_rows(jnp.conj(self)).T @ grad).T)
    if output_mask[2]:
        made.append(grad.sum(0))
    return made


@implements("linear")
def linear(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """`input @ weight.T + bias`: `(..., in)`, `(out, in)` or `(in,)`, and `(out,)`."""
    if weight.dim() == 1:
        made = torch.matmul(input, weight)
        return made if bias is None else made + bias
    if (
        input.dtype != weight.dtype
        or weight.dim() != 2
        or not input.dim()
        or _differ(input, weight)
    ):
        check_one_dtype("linear", (input, weight))
        # torch's own kernel says what is wrong, in its words.
        torch.nn.functional.linear(*(to_meta(t) for t in (input, weight, bias)))
    size = (*input.shape[:-1], weight.shape[0])
    return record("trcomp::linear", (input, weight, bias), [output(size, input.dtype)])[0]


def _differ(input: torch.Tensor, weight: torch.Tensor) -> bool:
    return input.shape[-1] != weight.shape[1]


@implements("linear_backward")
def linear_backward(
    self: torch.Tensor, grad_output: torch.Tensor, weight: torch.Tensor, output_mask: list[bool]
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of `linear` for input, weight and bias; None for those not asked for."""
    sizes = (self.shape, weight.shape, weight.shape[:1])
    mask = tuple(output_mask)
    made = iter(
        record(
            "trcomp::linear_backward",
            (self, grad_output, weight, mask),
            [output(size, self.dtype) for size, wanted in zip(sizes, mask, strict=True) if wanted],
        )
    )
    return tuple(next(made) if wanted else None for wanted in mask)


@lowers("trcomp::trilinear")
def _trilinear(ctx: Any, i1: Any, i2: Any, i3: Any, present: Any, out: tuple[int, ...]) -> Any:
    return jnp.einsum(i1, present[0], i2, present[1], i3, present[2], out, optimize="optimal")


@implements("_trilinear")
def trilinear(
    i1: torch.Tensor,
    i2: torch.Tensor,
    i3: torch.Tensor,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> torch.Tensor:
    """The product of three tensors, each broadcast along some dimensions, summed over `sumdim`."""
    dims = range(i1.dim() + len(expand1))
    operands = ((i1, expand1), (i2, expand2), (i3, expand3))
    present = tuple(tuple(d for d in dims if d not in expanded) for _, expanded in operands)
    extents = {
        d: tensor.shape[place]
        for (tensor, _), axes in zip(operands, present, strict=True)
        for place, d in enumerate(axes)
    }
    kept = tuple(d for d in dims if d not in sumdim)
    size = tuple(extents[d] for d in kept)
    return record("trcomp::trilinear", (i1, i2, i3, present, kept), [output(size, i1.dtype)])[0]
