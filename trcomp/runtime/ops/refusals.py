"""What torch's CPU kernels refuse and its meta kernels, which are asked first, let pass.

Each function takes an operator's own arguments, once per distinct call, and raises what the CPU's
kernel raises. Sizes and dtypes are known here; elements are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trcomp.runtime.ops.registry import refuses

_FLOATS = (torch.float16, torch.float32, torch.float64)


@refuses("complex")
def complex_(real: Any, imag: Any) -> None:
    if real.dtype not in _FLOATS or imag.dtype not in _FLOATS:
        raise RuntimeError(
            "Expected both inputs to be Half, Float or Double tensors but got "
            f"{real.dtype} and {imag.dtype}"
        )
    if real.dtype is not imag.dtype:
        raise RuntimeError(
            f"Expected object of scalar type {real.dtype} but got scalar type {imag.dtype} "
            "for second argument"
        )


@refuses("masked_scatter")
def masked_scatter(self: Any, mask: Any, source: Any) -> None:
    if mask.dtype is not torch.bool:
        raise RuntimeError(
            f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype}"
        )


@refuses("as_strided_scatter")
def as_strided_scatter(
    self: Any, src: Any, size: Sequence[int], stride: Sequence[int], storage_offset: Any
) -> None:
    offset = storage_offset or 0
    reach = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) + 1
    if all(size) and reach > self.numel():
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset} "
            f"reach {reach} elements, out of bounds for storage of {self.numel()}"
        )


@refuses("convolution")
def convolution(
    input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, *rest: Any
) -> None:
    if any(extent < 0 for extent in padding):
        raise RuntimeError("negative padding is not supported")
    if any(step <= 0 for step in stride):
        raise RuntimeError("non-positive stride is not supported")
    if any(step <= 0 for step in dilation):
        raise RuntimeError("dilation should be greater than zero")


@refuses("cat")
def cat(tensors: Sequence[Any], dim: int) -> None:
    for place, tensor in enumerate(tensors):
        if not tensor.dim():
            raise RuntimeError(
                f"zero-dimensional tensor (at position {place}) cannot be concatenated"
            )


@refuses("index_add")
def index_add(self: Any, dim: int, index: Any, source: Any, alpha: Any) -> None:
    def others(tensor: Any) -> list[int]:
        axis = dim % max(tensor.dim(), 1)
        return [n for d, n in enumerate(tensor.size()) if d != axis]

    if self.dim() and (source.dim() != self.dim() or others(source) != others(self)):
        raise RuntimeError(
            "source tensor shape must match self tensor shape, excluding the specified dimension. "
            f"Got self.shape = {list(self.size())} source.shape = {list(source.size())}"
        )


@refuses("bucketize.Tensor", "bucketize.Scalar")
def bucketize(self: Any, boundaries: Any, *rest: Any) -> None:
    if boundaries.dim() != 1:
        raise RuntimeError(
            f"boundaries tensor must be 1 dimension, but got dim({boundaries.dim()})"
        )


@refuses("embedding")
def embedding(weight: Any, indices: Any, *rest: Any) -> None:
    if weight.dim() != 2:
        raise RuntimeError("'weight' must be 2-D")


@refuses("amax")
def amax(self: Any, dim: Sequence[int], keepdim: bool) -> None:
    for axis in dim:
        _check_not_empty("amax()", self, axis)


@refuses("amin")
def amin(self: Any, dim: Sequence[int], keepdim: bool) -> None:
    for axis in dim:
        _check_not_empty("amin()", self, axis)


@refuses("aminmax")
def aminmax(self: Any, dim: int | None, keepdim: bool) -> None:
    if dim is not None:
        _check_not_empty("aminmax", self, dim)


@refuses("max", "min")
def extreme(self: Any) -> None:
    if not self.numel():
        raise RuntimeError(
            "max() or min(): Expected reduction dim to be specified for input.numel() == 0. "
            "Specify the reduction dim with the 'dim' argument."
        )


@refuses("max.dim", "min.dim", "mode", "median.dim", "nanmedian.dim")
def extreme_dim(self: Any, dim: int = -1, keepdim: bool = False) -> None:
    _check_not_empty("max(), min(), median() or mode()", self, dim)


def _check_not_empty(name: str, tensor: Any, axis: int) -> None:
    if tensor.dim() and -tensor.dim() <= axis < tensor.dim() and not tensor.size(axis):
        raise IndexError(f"{name}: Expected reduction dim {axis} to have non-zero size.")


@refuses("multinomial")
def multinomial(self: Any, num_samples: int, replacement: bool) -> None:
    if self.dim() not in (1, 2):
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    if not self.is_floating_point():
        raise RuntimeError(
            f"multinomial only supports floating-point dtypes for input, got: {self.dtype}"
        )
    if num_samples <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if not replacement and num_samples > self.size(-1):
        raise RuntimeError(
            "cannot sample n_sample > prob_dist.size(-1) samples without replacement"
        )
    if self.size(-1) > 1 << 24:
        raise RuntimeError("number of categories cannot exceed 2^24")
