"""PyTorch's own samples of operators, family by family, agree with the CPU."""

from __future__ import annotations

import pytest
import torch

from tests.runtime.opinfo import DTYPES, check, fallbacks, find_ops
from trcomp.runtime import dispatch

pytestmark = pytest.mark.runtime

FAMILIES = {
    "arithmetic": """add sub rsub mul div floor_divide remainder fmod pow float_power addcmul
        addcdiv lerp clamp clamp_min clamp_max maximum minimum fmax fmin copysign atan2 hypot xlogy
        logaddexp heaviside nan_to_num where masked_fill gcd lcm true_divide ldexp nextafter""",
    "unary": """abs neg sign sgn reciprocal sqrt rsqrt square exp exp2 expm1 log log10 log1p log2
        sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma digamma
        sigmoid ceil floor round trunc frac logit sinc angle positive deg2rad""",
    "comparison": """eq ne lt le gt ge bitwise_and bitwise_or bitwise_xor bitwise_not
        bitwise_left_shift bitwise_right_shift logical_and logical_or logical_xor logical_not isnan
        isinf isfinite isposinf isneginf signbit isclose allclose isin""",
    "reductions": """sum mean prod amax amin aminmax max min argmax argmin any all var std var_mean
        std_mean norm linalg.vector_norm logsumexp cumsum cumprod cummax cummin logcumsumexp
        count_nonzero nansum nanmean trace median nanmedian""",
    "indexing": """__getitem__ index_put index_select index_add index_copy index_fill index_reduce
        gather scatter scatter_add scatter_reduce take take_along_dim put masked_scatter
        nn.functional.embedding select_scatter slice_scatter diagonal_scatter as_strided_scatter""",
    "shaping": """cat stack hstack vstack dstack flip fliplr roll repeat tile tril triu diag
        diag_embed diagonal_copy rot90 nn.functional.pad nn.functional.pixel_shuffle
        nn.functional.pixel_unshuffle nn.functional.channel_shuffle linalg.cross kron unfold
        movedim repeat_interleave block_diag""",
    "creation": """arange linspace logspace eye full full_like zeros_like ones_like new_full
        new_zeros tril_indices triu_indices complex polar scalar_tensor""",
    "sorting": "sort argsort msort topk kthvalue searchsorted bucketize",
    "pooling": """nn.functional.max_pool1d nn.functional.max_pool2d nn.functional.max_pool3d
        nn.functional.avg_pool1d nn.functional.avg_pool2d nn.functional.avg_pool3d
        nn.functional.adaptive_avg_pool1d nn.functional.adaptive_avg_pool2d
        nn.functional.adaptive_avg_pool3d nn.functional.adaptive_max_pool2d
        nn.functional.upsample_nearest nn.functional.upsample_bilinear
        nn.functional.interpolate""",
    "activations": """nn.functional.relu nn.functional.relu6 nn.functional.gelu nn.functional.silu
        nn.functional.hardtanh nn.functional.hardswish nn.functional.hardsigmoid
        nn.functional.leaky_relu nn.functional.elu nn.functional.celu nn.functional.selu
        nn.functional.softplus nn.functional.mish nn.functional.logsigmoid nn.functional.prelu
        nn.functional.softshrink nn.functional.hardshrink nn.functional.tanhshrink
        nn.functional.softsign nn.functional.threshold nn.functional.glu""",
}


LESS_EXACT_ON_THE_CPU = {
    # torch's kernel sums in bfloat16; the device's result is nearer to float32's.
    "nn.functional.adaptive_avg_pool3d bfloat16 sample 1",
}

MAY_FALL_BACK = {"_linalg_svd", "_unique", "masked_select", "nonzero", "polygamma"}
"""The nuclear norm, sizes that depend on data, and digamma's derivative."""


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_agree_with_the_cpu(family: str) -> None:
    problems = check(find_ops(FAMILIES[family].split()), DTYPES, limit=2)
    expected = {label for label in LESS_EXACT_ON_THE_CPU if label in problems}
    assert problems.keys() - expected == set(), problems
    assert fallbacks().keys() <= MAY_FALL_BACK


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"comparison", "creation"}))
def test_gradients_agree_with_the_cpu(family: str) -> None:
    problems = check(find_ops(FAMILIES[family].split()), [torch.float32], limit=1, backward=True)
    assert problems == {}
    assert fallbacks().keys() <= MAY_FALL_BACK


def test_no_kernel_hides_a_derivative() -> None:
    """What torch composes of other operators gets its derivative from them: leave it composed."""
    hidden = [
        name
        for name in dispatch.registered()
        if has_kernel(name, "CompositeImplicitAutograd")
        and not (has_kernel(name, "Autograd") or has_kernel(name, f"Autograd{dispatch.KEY}"))
    ]
    assert hidden == []


def has_kernel(name: str, key: str) -> bool:
    """Whether an aten operator has a kernel of its own under a dispatch key."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key)
