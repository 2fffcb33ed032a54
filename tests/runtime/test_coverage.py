"""The operators that models, optimizers and every script use have kernels on the device."""

from __future__ import annotations

import pytest
import torch

import trcomp.runtime  # noqa: F401 - brings the device up
from trcomp.runtime.dispatch import registered
from trcomp.runtime.ops.registry import find

pytestmark = pytest.mark.runtime

MODELS = """
    _log_softmax _log_softmax_backward_data add.Tensor add_.Tensor addmm clone convolution
    convolution_backward div.Scalar div.Tensor div_.Tensor empty.memory_format
    max_pool2d_with_indices max_pool2d_with_indices_backward mm mul.Tensor mul_.Tensor
    native_batch_norm native_batch_norm_backward nll_loss_forward nll_loss_backward relu relu_
    sum.dim_IntList threshold_backward view _adaptive_avg_pool2d _adaptive_avg_pool2d_backward
    bernoulli_.float hardtanh hardtanh_ hardtanh_backward mean.dim _safe_softmax
    _softmax_backward_data bmm cat gelu gelu_backward mul.Scalar native_layer_norm
    native_layer_norm_backward select_backward slice_backward stack _local_scalar_dense _softmax
    _to_copy all embedding embedding_dense_backward gather tanh tanh_backward arange.start_out
    bitwise_and.Tensor constant_pad_nd eq.Scalar index.Tensor le.Tensor le.Scalar
    pow.Tensor_Scalar sum tril where.self cos sin neg rsqrt silu silu_backward abs copy_
    fill_.Tensor fill_.Scalar ge.Scalar gt.Tensor lt.Tensor log masked_fill.Scalar
    masked_fill_.Scalar minimum sub.Tensor exp mse_loss mse_loss_backward native_group_norm
    native_group_norm_backward upsample_nearest2d upsample_nearest2d_backward as_strided
    avg_pool2d avg_pool2d_backward sigmoid sigmoid_backward silu_ linear linear_backward
    scaled_dot_product_attention native_dropout native_dropout_backward
"""
OPTIMIZERS = """
    _foreach_add.Scalar _foreach_add_.Scalar _foreach_add_.List _foreach_mul_.Scalar
    _foreach_mul_.Tensor _foreach_mul_.List add_.Tensor mul_.Tensor addcdiv_ addcmul_
    lerp_.Scalar maximum.out sqrt _foreach_addcdiv_.ScalarList _foreach_addcmul_.Scalar
    _foreach_div_.ScalarList _foreach_lerp_.Scalar _foreach_maximum_.List _foreach_sqrt
    _fused_adamw_ _fused_adam_ _fused_sgd_ linalg_vector_norm reciprocal clamp
    _foreach_norm.Scalar
"""
SCRIPTS = """
    index_put _index_put_impl_ scatter_add topk argmax cumsum sort any isnan native_dropout
    normal_ uniform_ randint random_ randperm _amp_foreach_non_finite_check_and_unscale_
    _amp_update_scale_ bitwise_not ne.Scalar ne.Tensor clamp_ binary_cross_entropy
    binary_cross_entropy_backward smooth_l1_loss smooth_l1_loss_backward
"""


def _is_composed(name: str) -> bool:
    """Whether torch makes the operator of others on any device."""
    keys = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
    full = find(name)._name
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(full, key) for key in keys)


@pytest.mark.parametrize(
    "names", [MODELS, OPTIMIZERS, SCRIPTS], ids=["models", "optimizers", "scripts"]
)
def test_no_operator_of_the_list_falls_back(names: str) -> None:
    missing = [n for n in names.split() if n not in registered() and not _is_composed(n)]
    assert missing == []
