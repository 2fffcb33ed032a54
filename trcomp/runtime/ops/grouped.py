"""Matrix products by group, as mixtures of experts use them; group sizes stay on the device."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import torch
from jax import lax

from trcomp.runtime.dispatch import implements
from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.registry import lowers
from trcomp.runtime.recording import record
from trcomp.runtime.storage import output


@implements("_grouped_mm")
def grouped_mm(
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Products of the groups that `offs`, shape (groups,), ends along the dimension they share.

    Rows of `self` (rows, inner) meet their group of `mat2` (groups, inner, columns); columns of
    `mat2` (inner, columns) meet theirs of `self` (groups, rows, inner); two matrices are
    contracted group by group. torch's meta kernel takes bfloat16 alone, so the size is found here.

    Raises:
        RuntimeError: The inner sizes differ, or `offs` is missing or not wanted.
    """
    batched = self.dim() == mat2.dim() == 3
    if self.size(-1) != mat2.size(-2) or batched != (offs is None):
        raise RuntimeError(
            f"_grouped_mm got sizes {tuple(self.size())} and {tuple(mat2.size())} "
            f"{'without' if offs is None else 'with'} offs; the inner sizes must agree, "
            "and offs is for matrices that hold several groups."
        )
    size: tuple[int, ...] = (self.size(-2), mat2.size(-1))
    if batched:
        size = (self.size(0), *size)
    elif self.dim() == mat2.dim() and offs is not None:
        size = (offs.size(0), *size)
    out = output(size, out_dtype or self.dtype)
    made = record("trcomp::grouped_mm", (self, mat2, offs), [out])[0]
    return made if bias is None else made + bias


@lowers("trcomp::grouped_mm")
def _grouped_mm(ctx: Any, self: Any, mat2: Any, offs: Any) -> Any:
    if ctx.platform == "cpu":  # whose kernels do not all take half types in and give float32
        self, mat2 = cast(self, ctx.opmath), cast(mat2, ctx.opmath)
    if self.ndim == 2 and mat2.ndim == 3:
        return _by_rows(ctx, self, mat2, offs)
    if self.ndim == 3 and mat2.ndim == 2:
        return _by_rows(ctx, mat2.T, self.swapaxes(1, 2), offs).T
    if self.ndim == 2:
        place = jnp.arange(self.shape[1])
        first = jnp.concatenate([jnp.zeros(1, offs.dtype), offs[:-1]])
        inside = (place >= first[:, None]) & (place < offs[:, None])
        self = jnp.where(inside[:, None, :], self, jnp.zeros((), self.dtype))
    return jnp.matmul(self, mat2, preferred_element_type=ctx.opmath)


def _by_rows(ctx: Any, rows: Any, matrices: Any, offs: Any) -> Any:
    sizes = jnp.diff(offs, prepend=0).astype(jnp.int32)
    return lax.ragged_dot(rows, matrices, sizes, preferred_element_type=ctx.opmath)
