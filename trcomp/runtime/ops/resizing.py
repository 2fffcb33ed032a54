"""Upsampling: along each dimension a gather (nearest) or a small matrix (linear, cubic)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.elementwise import is_integral
from trcomp.runtime.ops.registry import lowers
from trcomp.runtime.ops.shaping import transpose_of

_CUBIC = -0.75
"""The cubic convolution coefficient that torch uses."""


def along(self: Any, matrix: Any, axis: int) -> Any:
    """A matrix of shape (out, in) applied along one axis."""
    weights = jnp.asarray(matrix, self.dtype)
    product = jnp.tensordot(self, weights, axes=(axis, 1), precision=lax.Precision.HIGHEST)
    return jnp.moveaxis(product, -1, axis)


def _ratio(extent: int, out: int, scale: float | None, real: Any) -> Any:
    """Input places per output place: of the scale that was asked for, else of the sizes."""
    return real(1.0 / scale) if scale else real(extent) / real(out)


def _nearest(self: Any, axis: int, out: int, scale: float | None, *, exact: bool) -> Any:
    extent = self.shape[axis]
    if out % extent == 0 and (scale is None or scale == out // extent):
        return jnp.repeat(self, out // extent, axis=axis)
    place = np.arange(out, dtype=np.float32) + np.float32(0.5 if exact else 0)
    source = np.floor(place * _ratio(extent, out, scale, np.float32)).astype(np.int64)
    return jnp.take(self, np.minimum(source, extent - 1), axis=axis)


def _sources(
    extent: int, out: int, scale: float | None, align: bool, real: Any, *, cubic: bool
) -> Any:
    """Where each output place lies among the input's, in input places of type `real`."""
    place = np.arange(out, dtype=real)
    if align:
        return place * real((extent - 1) / (out - 1) if out > 1 else 0)
    source = _ratio(extent, out, scale, real) * (place + real(0.5)) - real(0.5)
    return source if cubic else np.maximum(source, 0)


def _linear_matrix(extent: int, out: int, scale: float | None, align: bool, real: Any) -> Any:
    source = _sources(extent, out, scale, align, real, cubic=False)
    low = np.minimum(np.floor(source).astype(np.int64), extent - 1)
    weight = np.clip(source - low, 0, 1)
    matrix = np.zeros((out, extent))
    rows = np.arange(out)
    np.add.at(matrix, (rows, low), 1 - weight)
    np.add.at(matrix, (rows, np.minimum(low + 1, extent - 1)), weight)
    return matrix


def _cubic_matrix(extent: int, out: int, scale: float | None, align: bool, real: Any) -> Any:
    source = _sources(extent, out, scale, align, real, cubic=True)
    low = np.floor(source).astype(np.int64)
    t = source - low
    near = [(_CUBIC + 2) * x**3 - (_CUBIC + 3) * x**2 + 1 for x in (t, 1 - t)]
    far = [_CUBIC * x**3 - 5 * _CUBIC * x**2 + 8 * _CUBIC * x - 4 * _CUBIC for x in (t + 1, 2 - t)]
    matrix = np.zeros((out, extent))
    for step, weight in zip((-1, 0, 1, 2), (far[0], near[0], near[1], far[1]), strict=True):
        np.add.at(matrix, (np.arange(out), np.clip(low + step, 0, extent - 1)), weight)
    return matrix


def _register_nearest(name: str, rank: int, *, exact: bool) -> None:
    def resize(self: Any, out: tuple[int, ...], scales: tuple[Any, ...]) -> Any:
        for d in range(rank):
            scale = scales[d] if d < len(scales) else None
            self = _nearest(self, self.ndim - rank + d, out[d], scale, exact=exact)
        return self

    names = _scale_names(rank)

    @lowers(name, static=names)
    def forward(ctx: Any, self: Any, output_size: tuple[int, ...], *scales: Any) -> Any:
        return resize(self, output_size, scales)

    @lowers(f"{name}_backward", static=names)
    def backward(
        ctx: Any, grad_output: Any, output_size: Any, input_size: Any, *scales: Any
    ) -> Any:
        grad = cast(grad_output, ctx.opmath)
        return transpose_of(lambda x: resize(x, output_size, scales), input_size, grad)


def _register_interpolation(name: str, rank: int, matrix: Any) -> None:
    def resize(self: Any, out: tuple[int, ...], align: bool, scales: tuple[Any, ...]) -> Any:
        # As in torch: places are of the image's own precision, for half types of float32.
        real: Any = np.float64 if self.dtype == np.float64 else np.float32
        for d in range(rank):
            axis = self.ndim - rank + d
            scale = scales[d] if d < len(scales) else None
            self = along(self, matrix(self.shape[axis], out[d], scale, align, real), axis)
        return self

    names = _scale_names(rank)

    @lowers(name, static=names)
    def forward(
        ctx: Any, self: Any, output_size: tuple[int, ...], align_corners: bool, *scales: Any
    ) -> Any:
        whole = is_integral(ctx.dtype)
        value = cast(self, np.dtype(np.float32) if whole else ctx.opmath)
        result = resize(value, output_size, align_corners, scales)
        return jnp.clip(jnp.round(result), 0, 255) if whole else result

    @lowers(f"{name}_backward", static=names)
    def backward(
        ctx: Any,
        grad_output: Any,
        output_size: Any,
        input_size: Any,
        align_corners: bool,
        *scales: Any,
    ) -> Any:
        grad = cast(grad_output, ctx.opmath)
        return transpose_of(
            lambda x: resize(x, output_size, align_corners, scales), input_size, grad
        )


def _scale_names(rank: int) -> tuple[str, ...]:
    return ("scales",) if rank == 1 else ("scales_d", "scales_h", "scales_w")[3 - rank :]


for _rank in (1, 2, 3):
    _register_nearest(f"upsample_nearest{_rank}d", _rank, exact=False)
    _register_nearest(f"_upsample_nearest_exact{_rank}d", _rank, exact=True)
_register_interpolation("upsample_linear1d", 1, _linear_matrix)
_register_interpolation("upsample_bilinear2d", 2, _linear_matrix)
_register_interpolation("upsample_trilinear3d", 3, _linear_matrix)
_register_interpolation("upsample_bicubic2d", 2, _cubic_matrix)
