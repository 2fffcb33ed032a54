"""Matrix factorizations and what follows from them: solving, inverses, determinants."""

# ruff: noqa: N803 (aten's argument names)

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.registry import exists, lowers


def _adjoint(matrix: Any) -> Any:
    return jnp.conj(jnp.swapaxes(matrix, -1, -2))


def _diagonal(matrix: Any) -> Any:
    return jnp.diagonal(matrix, axis1=-2, axis2=-1)


def _eye(matrix: Any) -> Any:
    return jnp.broadcast_to(jnp.eye(matrix.shape[-1], dtype=matrix.dtype), matrix.shape)


def _first(failed: Any) -> Any:
    """LAPACK's info: the number of the first place that is true along the last axis, else 0."""
    if not failed.shape[-1]:
        return jnp.zeros(failed.shape[:-1], jnp.int32)
    place = jnp.argmax(failed, axis=-1) + 1
    return jnp.where(jnp.any(failed, axis=-1), place, 0).astype(jnp.int32)


@lowers("linalg_cholesky_ex")
def cholesky_ex(
    ctx: Any, self: Any, *, upper: bool = False, check_errors: bool = False
) -> tuple[Any, Any]:
    # One triangle alone is read, as in torch. XLA tells that it failed by NaN, not where.
    source = _adjoint(jnp.triu(self)) if upper else jnp.tril(self)
    factor = lax.linalg.cholesky(source, symmetrize_input=False)
    info = _first(jnp.isnan(_diagonal(factor)))
    return (_adjoint(factor) if upper else factor), info


if exists("cholesky"):  # Until torch 2.13.

    @lowers("cholesky")
    def cholesky(ctx: Any, self: Any, upper: bool = False) -> Any:
        return cholesky_ex(ctx, self, upper=upper)[0]


def _solve_factored(factor: Any, right: Any, upper: bool) -> Any:
    """x of A x = right, for A's Cholesky factor."""
    lower = _adjoint(factor) if upper else factor
    half = _solve_triangular(lower, right, upper=False)
    return _solve_triangular(_adjoint(lower), half, upper=True)


def _solve_triangular(matrix: Any, right: Any, *, upper: bool, **options: bool) -> Any:
    left = options.pop("left", True)
    if not right.size:
        return right
    return lax.linalg.triangular_solve(matrix, right, left_side=left, lower=not upper, **options)


def _broadcast(left: Any, right: Any) -> tuple[Any, Any]:
    """Two stacks of matrices with the same batch dimensions."""
    batch = jnp.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    return (
        jnp.broadcast_to(left, (*batch, *left.shape[-2:])),
        jnp.broadcast_to(right, (*batch, *right.shape[-2:])),
    )


@lowers("cholesky_solve")
def cholesky_solve(ctx: Any, self: Any, input2: Any, upper: bool = False) -> Any:
    factor, right = _broadcast(input2, self)
    factor = jnp.triu(factor) if upper else jnp.tril(factor)
    return _solve_factored(factor, right, upper)


@lowers("cholesky_inverse")
def cholesky_inverse(ctx: Any, self: Any, upper: bool = False) -> Any:
    factor = jnp.triu(self) if upper else jnp.tril(self)
    return _solve_factored(factor, _eye(self), upper)


@lowers("linalg_solve_triangular")
def solve_triangular(
    ctx: Any, self: Any, B: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    matrix, right = _broadcast(self, B)
    return _solve_triangular(matrix, right, upper=upper, left=left, unit_diagonal=unitriangular)


@lowers("triangular_solve")
def triangular_solve(
    ctx: Any,
    self: Any,
    A: Any,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[Any, Any]:
    matrix, right = _broadcast(A, self)
    solution = _solve_triangular(
        matrix, right, upper=upper, transpose_a=transpose, unit_diagonal=unitriangular
    )
    return solution, matrix


def _lu(matrix: Any) -> tuple[Any, Any, Any]:
    """Packed factors, torch's pivots (from 1), and the permutation of rows that they make."""
    *batch, rows, columns = matrix.shape
    if not matrix.size:
        pivots = jnp.zeros((*batch, min(rows, columns)), jnp.int32)
        return matrix, pivots, jnp.broadcast_to(jnp.arange(rows), (*batch, rows))
    packed, pivots, rows_order = lax.linalg.lu(matrix)
    return packed, pivots + 1, rows_order


def _info(packed: Any) -> Any:
    return _first(_diagonal(packed) == 0)


@lowers("linalg_lu_factor_ex")
def lu_factor_ex(
    ctx: Any, A: Any, *, pivot: bool = True, check_errors: bool = False
) -> tuple[Any, Any, Any]:
    packed, pivots, _ = _lu(A)
    return packed, pivots, _info(packed)


def _unpacked(packed: Any, order: Any) -> tuple[Any, Any, Any]:
    """The permutation, L and U as matrices."""
    rows, columns = packed.shape[-2:]
    short = min(rows, columns)
    lower = jnp.tril(packed[..., :, :short], -1) + jnp.eye(rows, short, dtype=packed.dtype)
    upper = jnp.triu(packed[..., :short, :])
    permutation = jnp.swapaxes(jax.nn.one_hot(order, rows, dtype=packed.dtype), -1, -2)
    return permutation, lower, upper


@lowers("linalg_lu")
def linalg_lu(ctx: Any, A: Any, *, pivot: bool = True) -> tuple[Any, Any, Any]:
    packed, _, order = _lu(A)
    return _unpacked(packed, order)


@lowers("lu_unpack")
def lu_unpack(
    ctx: Any, LU_data: Any, LU_pivots: Any, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Any, ...]:
    order = lax.linalg.lu_pivots_to_permutation(LU_pivots - 1, LU_data.shape[-2])
    made = _unpacked(LU_data, order)
    asked = (unpack_pivots, unpack_data, unpack_data)
    return tuple(
        part if wanted else jnp.zeros(size, LU_data.dtype)
        for part, wanted, size in zip(made, asked, ctx.sizes, strict=True)
    )


def _solve_packed(packed: Any, order: Any, right: Any, *, adjoint: bool = False) -> Any:
    """x of A x = right (or of A's adjoint), for the LU factors of A and its order of rows."""
    if adjoint:
        half = _solve_triangular(packed, right, upper=True, transpose_a=True, conjugate_a=True)
        rows = _solve_triangular(
            packed, half, upper=False, unit_diagonal=True, transpose_a=True, conjugate_a=True
        )
        return jnp.take_along_axis(rows, jnp.argsort(order, axis=-1)[..., None], axis=-2)
    rows = jnp.take_along_axis(right, order[..., None], axis=-2)
    half = _solve_triangular(packed, rows, upper=False, unit_diagonal=True)
    return _solve_triangular(packed, half, upper=True)


@lowers("linalg_lu_solve")
def lu_solve(
    ctx: Any, LU: Any, pivots: Any, B: Any, *, left: bool = True, adjoint: bool = False
) -> Any:
    if not B.size or not LU.size:
        return jnp.zeros(ctx.size, ctx.dtype)
    order = lax.linalg.lu_pivots_to_permutation(pivots - 1, LU.shape[-1])
    right = B if left else _adjoint(B)
    packed, right = _broadcast(LU, right)
    order = jnp.broadcast_to(order, packed.shape[:-1])
    solution = _solve_packed(packed, order, right, adjoint=adjoint is left)
    return solution if left else _adjoint(solution)


@lowers("linalg_inv_ex")
def inv_ex(ctx: Any, A: Any, *, check_errors: bool = False) -> tuple[Any, Any]:
    packed, _, order = _lu(A)
    return _solve_packed(packed, order, _eye(A)), _info(packed)


@lowers("_linalg_solve_ex")
def solve_ex(
    ctx: Any, A: Any, B: Any, *, left: bool = True, check_errors: bool = False
) -> tuple[Any, ...]:
    packed, pivots, order = _lu(A)
    # torch takes B for a vector or a batch of them if its shape is A's without the columns.
    vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])
    right = B[..., None] if vector else B
    right = right if left else _adjoint(right)
    factors, right = _broadcast(packed, right)
    rows = jnp.broadcast_to(order, factors.shape[:-1])
    solution = _solve_packed(factors, rows, right, adjoint=not left) if right.size else right
    solution = solution if left else _adjoint(solution)
    solution = solution[..., 0] if vector else solution
    return solution.reshape(ctx.size), packed, pivots, _info(packed)


def _parity(pivots: Any) -> Any:
    """1 for an even number of row exchanges, -1 for an odd one."""
    moved = pivots != jnp.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype)
    return 1 - 2 * (jnp.sum(moved, axis=-1) % 2)


@lowers("_linalg_det")
def det(ctx: Any, A: Any) -> tuple[Any, Any, Any]:
    packed, pivots, _ = _lu(A)
    result = jnp.prod(_diagonal(packed), axis=-1) * _parity(pivots).astype(A.dtype)
    return result, packed, pivots


@lowers("_linalg_slogdet")
def slogdet(ctx: Any, A: Any) -> tuple[Any, ...]:
    packed, pivots, _ = _lu(A)
    diagonal = _diagonal(packed)
    sign = jnp.prod(jnp.sign(diagonal), axis=-1) * _parity(pivots).astype(A.dtype)
    return sign, jnp.sum(jnp.log(jnp.abs(diagonal)), axis=-1), packed, pivots


@lowers("linalg_qr")
def qr(ctx: Any, A: Any, mode: str = "reduced") -> tuple[Any, Any]:
    if mode == "r":
        return jnp.zeros(ctx.sizes[0], A.dtype), jnp.linalg.qr(A, mode="r")
    made = jnp.linalg.qr(A, mode=mode)
    return made[0], made[1]


@lowers("_linalg_eigh")
def eigh(ctx: Any, A: Any, UPLO: str = "L", compute_v: bool = True) -> tuple[Any, Any]:
    triangle = jnp.tril(A) if UPLO.upper() == "L" else _adjoint(jnp.triu(A))
    strict = jnp.tril(triangle, -1)
    whole = strict + _adjoint(strict) + _eye(A) * jnp.real(_diagonal(A))[..., None]
    values, vectors = jnp.linalg.eigh(whole, symmetrize_input=False)
    return values, vectors if compute_v else jnp.zeros(ctx.sizes[1], A.dtype)


@lowers("_linalg_svd")
def svd(
    ctx: Any, A: Any, full_matrices: bool = False, compute_uv: bool = True, *, driver: Any = None
) -> tuple[Any, Any, Any]:
    if not compute_uv:
        values = jnp.linalg.svd(A, compute_uv=False)
        return jnp.zeros(ctx.sizes[0], A.dtype), values, jnp.zeros(ctx.sizes[2], A.dtype)
    left, values, right = jnp.linalg.svd(A, full_matrices=full_matrices)
    return left, values, right


@lowers("linalg_householder_product")
def householder_product(ctx: Any, input: Any, tau: Any) -> Any:
    return lax.linalg.householder_product(input, tau) if input.size else input


@lowers("linalg_matrix_exp")
def matrix_exp(ctx: Any, self: Any) -> Any:
    if not self.size:
        return self
    rows = cast(self, ctx.opmath).reshape(-1, *self.shape[-2:])
    return jax.vmap(jax.scipy.linalg.expm)(rows).reshape(self.shape)
