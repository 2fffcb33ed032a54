"""Operators of op_db that differ from the CPU, and why, and those that the CPU computes.

The tests and the page of operators read these tables. Entries may only be taken away: what is
listed and no longer fails is an error of `make opinfo`.
"""

from __future__ import annotations

from typing import NamedTuple


class Reason(NamedTuple):
    """Why samples differ.

    Attributes:
        text: A sentence for the page of operators.
        dtypes: Of the samples that differ; those of other dtypes must be right. Empty for all.
        everywhere: They differ on every machine, not only where the CPU adds in some order.
    """

    text: str
    dtypes: tuple[str, ...] = ()
    everywhere: bool = True


_SPARSE = Reason("The device has dense tensors only.")
_COMPLEX32 = Reason("XLA has no complex32.")
_COMPLEX32_HALF = Reason("XLA has no complex32.", ("float16",))
_SINGULAR = Reason("The gradient at a singular matrix hangs on how its smallest pivot is rounded.")
_SPLIT = Reason("As on CUDA, places to split at that are a tensor stay on the CPU.")
_STATISTICS = Reason(
    "As on CUDA, the statistics of half-type batches are float32.", ("bfloat16", "float16")
)
_BRANCH = Reason(
    "The logarithm's imaginary part lies a turn away: as exact, on another branch.", ("complex64",)
)
_HALF = Reason(
    "Sums in a half type are rounded in another order.", ("bfloat16", "float16"), everywhere=False
)
_ORDER = Reason("Sums are rounded in another order.", ("float32",), everywhere=False)
_TIE = Reason("Equal elements: the gradient goes to another of them.", ("bfloat16", "float16"))
_RESIZED = Reason("The CPU resizes a tensor that is too small; CUDA and XLA refuse it.")
_SIXTH = Reason("The CPU multiplies by a sixth in float32.", ("float64",))
_UNREAD = Reason("The error depends on elements, which a lazy device has not read.")
_OTHER_TYPE = Reason(
    "torch's meta kernel, which checks the arguments, raises another type of error."
)

FAILING: dict[tuple[str, str], Reason] = {
    ("_native_batch_norm_legit", "forward"): _STATISTICS,
    ("_native_batch_norm_legit", "out"): _STATISTICS,
    ("addbmm", "in-place"): _RESIZED,
    ("chalf", "forward"): _COMPLEX32,
    ("chalf", "gradient"): _COMPLEX32,
    ("complex", "forward"): _COMPLEX32_HALF,
    ("complex", "gradient"): _COMPLEX32_HALF,
    ("complex", "out"): _COMPLEX32_HALF,
    ("cov", "gradient"): _HALF,
    ("gather", "error"): _UNREAD,
    ("linalg.det", "gradient"): _SINGULAR,
    ("linalg.slogdet", "gradient"): _SINGULAR,
    ("logaddexp", "forward"): _BRANCH,
    ("logaddexp", "out"): _BRANCH,
    ("logcumsumexp", "forward"): _BRANCH,
    ("logcumsumexp", "out"): _BRANCH,
    ("logdet", "gradient"): _SINGULAR,
    ("mode", "gradient"): _TIE,
    ("multinomial", "error"): _UNREAD,
    ("narrow_copy", "error"): _OTHER_TYPE,
    ("native_batch_norm", "forward"): _STATISTICS,
    ("native_batch_norm", "out"): _STATISTICS,
    ("native_layer_norm", "forward"): _STATISTICS,
    ("nn.functional.conv_transpose3d", "gradient"): _ORDER,
    ("nn.functional.hardsigmoid", "gradient"): _SIXTH,
    ("nn.functional.linear_cross_entropy.chunked", "gradient"): _HALF,
    ("nn.functional.linear_cross_entropy.chunked_none", "gradient"): _HALF,
    ("nn.functional.multi_head_attention_forward", "forward"): _HALF,
    ("nn.functional.scaled_dot_product_attention", "gradient"): _HALF,
    ("scatter", "error"): _UNREAD,
    ("scatter_add", "error"): _UNREAD,
    ("sparse.mm.reduce", "forward"): _SPARSE,
    ("sparse.mm.reduce", "gradient"): _SPARSE,
    ("sparse.sampled_addmm", "forward"): _SPARSE,
    ("sparse.sampled_addmm", "gradient"): _SPARSE,
    ("sparse.sampled_addmm", "out"): _SPARSE,
    ("tensor_split", "forward"): _SPLIT,
    ("tensor_split", "gradient"): _SPLIT,
    ("to_sparse", "forward"): _SPARSE,
    ("to_sparse", "gradient"): _SPARSE,
    ("topk", "gradient"): _TIE,
    ("view_as_complex", "gradient"): _COMPLEX32_HALF,
}
"""(operator with its variant, check) -> reason."""


def is_listed(op: str, check: str, dtype: str) -> bool:
    """Whether a sample of an operator, check and dtype may be wrong."""
    reason = FAILING.get((op, check))
    return reason is not None and (not reason.dtypes or dtype in reason.dtypes)


_NAMES = """
    _batch_norm_with_update _histogramdd_bin_edges _histogramdd_from_bin_cts
    _histogramdd_from_bin_tensors _linalg_eigvals _native_batch_norm_legit.out
    _segment_reduce_backward _unique _unique2 _upsample_bilinear2d_aa
    _upsample_bilinear2d_aa_backward batch_norm_backward bernoulli.out bincount conj_physical.out
    frexp geqrf hash_tensor histogram linalg_eig linalg_eigvals linalg_ldl_factor_ex
    linalg_ldl_solve linalg_lstsq linalg_pinv masked_select multinomial.out narrow_copy.out
    native_batch_norm.out nonzero nonzero_static normal.Tensor_Tensor_out normal.Tensor_float_out
    ormqr polygamma repeat_interleave.Tensor rrelu_with_noise_ segment_reduce special_airy_ai
    special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
    special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
    special_chebyshev_polynomial_w special_erfcx special_hermite_polynomial_h
    special_hermite_polynomial_he special_laguerre_polynomial_l special_legendre_polynomial_p
    special_modified_bessel_k0 special_modified_bessel_k1 special_scaled_modified_bessel_k0
    special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t
    special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v
    special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0 special_zeta
    unique_consecutive unique_dim
"""
ON_THE_CPU = frozenset(_NAMES.split())
"""aten operators without a lowering, those by a bare name in all their forms: sizes that depend on
values, functions that XLA lacks, `out=` forms that no rule serves."""
