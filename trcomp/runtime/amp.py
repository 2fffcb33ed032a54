"""`torch.autocast("xla")`: which operators run in half precision, which in float32, which widen.

The lists are those of CUDA in PyTorch's "Autocast Op Reference", so a script's numbers keep their
meaning. A parameter used twice is cast twice, in the graph; XLA makes one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten, tree_map

from trcomp.runtime.device import NAME, is_on_device
from trcomp.runtime.ops.registry import find

HALF = """
    __matmul__ addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d convolution
    conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input einsum linalg_multi_dot
    linalg_vecdot linear matmul mm multi_dot mv prelu scaled_dot_product_attention
    lstm.input lstm.data lstm_cell gru.input gru.data gru_cell rnn_relu.input rnn_relu.data
    rnn_relu_cell rnn_tanh.input rnn_tanh.data rnn_tanh_cell
"""
"""Run in the region's dtype."""

FULL = """
    acos asin cosh erfinv exp expm1 log log10 log1p log2 reciprocal rsqrt sinh tan pow.Tensor_Scalar
    pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm frobenius_norm.dim
    nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss
    nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss
    margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
    multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp
    upsample_nearest1d upsample_nearest2d upsample_bilinear2d upsample_trilinear3d
    upsample_bicubic2d linalg_vector_norm linalg_matrix_norm cross_entropy_loss
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum sum sum.dim_IntList norm.Scalar
    norm.ScalarOpt_dim
"""
"""Run in float32."""

WIDEST = """
    addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot vdot cat
    stack
"""
"""Run in the widest floating dtype among their arguments."""

_PASS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]
_everything = torch.library.Library("_", "IMPL")
_named = torch.library.Library("aten", "IMPL")


def _is_eligible(argument: Any) -> bool:
    return (
        isinstance(argument, torch.Tensor)
        and is_on_device(argument)
        and argument.is_floating_point()
        and argument.dtype != torch.float64
    )


def _cast(argument: Any, dtype: torch.dtype) -> Any:
    return argument.to(dtype) if _is_eligible(argument) else argument


def _kernel(op: OpOverload, choose: Callable[[Any], torch.dtype | None]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_PASS):
            dtype = choose((args, kwargs))
            if dtype is None:
                return op(*args, **kwargs)
            args, kwargs = tree_map(lambda a: _cast(a, dtype), (args, kwargs))
            return op(*args, **kwargs)

    return kernel


def _half(arguments: Any) -> torch.dtype:
    return torch.get_autocast_dtype(NAME)


def _full(arguments: Any) -> torch.dtype:
    return torch.float32


def _widest(arguments: Any) -> torch.dtype | None:
    dtypes = {a.dtype for a in tree_flatten(arguments)[0] if _is_eligible(a)}
    if not dtypes:
        return None
    return torch.float32 if torch.float32 in dtypes or len(dtypes) > 1 else dtypes.pop()


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
        "Combine the sigmoid with the loss: use binary_cross_entropy_with_logits or "
        "torch.nn.BCEWithLogitsLoss, which are safe to autocast."
    )


def _register(names: str, choose: Callable[[Any], torch.dtype | None]) -> None:
    for name in names.split():
        try:
            op = find(name)
        except ValueError:
            continue  # not an operator of this version of torch
        _named.impl(name, _kernel(op, choose), "AutocastPrivateUse1")


def register() -> None:
    """Give the device its autocast kernels; every other operator passes through."""
    # What torch says of XLA; a spare device type would begin with float16.
    torch.set_autocast_dtype(NAME, torch.bfloat16)
    _everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    _register(HALF, _half)
    _register(FULL, _full)
    _register(WIDEST, _widest)
    _named.impl("binary_cross_entropy", _refuse, "AutocastPrivateUse1")
