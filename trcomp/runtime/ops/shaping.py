"""Operators that move elements: joining, repeating, flipping, padding, triangles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.registry import lowers


@lowers("cat")
def cat(ctx: Any, tensors: Sequence[Any], dim: int = 0) -> Any:
    # torch passes over a legacy empty tensor, shape (0,), whatever the others' rank.
    parts = [cast(part, ctx.dtype) for part in tensors if part.shape != (0,)]
    return jnp.concatenate(parts, axis=dim) if parts else jnp.zeros(ctx.size, ctx.dtype)


@lowers("stack")
def stack(ctx: Any, tensors: Sequence[Any], dim: int = 0) -> Any:
    return jnp.stack([cast(part, ctx.dtype) for part in tensors], axis=dim)


@lowers("flip")
def flip(ctx: Any, self: Any, dims: tuple[int, ...]) -> Any:
    return jnp.flip(self, dims) if self.ndim else self


@lowers("roll")
def roll(ctx: Any, self: Any, shifts: tuple[int, ...], dims: tuple[int, ...] = ()) -> Any:
    if not self.size:
        return self
    return jnp.roll(self, shifts, dims) if dims else jnp.roll(self, shifts[0])


@lowers("repeat")
def repeat(ctx: Any, self: Any, repeats: tuple[int, ...]) -> Any:
    return jnp.tile(self, repeats) if repeats else self


@lowers("tril")
def tril(ctx: Any, self: Any, diagonal: int = 0) -> Any:
    return jnp.tril(self, diagonal)


@lowers("triu")
def triu(ctx: Any, self: Any, diagonal: int = 0) -> Any:
    return jnp.triu(self, diagonal)


@lowers("linalg_cross")
def linalg_cross(ctx: Any, self: Any, other: Any, *, dim: int = -1) -> Any:
    size = ctx.size
    left, right = (jnp.broadcast_to(cast(x, ctx.dtype), size) for x in (self, other))
    return jnp.cross(left, right, axis=dim)


@lowers("pixel_shuffle")
def pixel_shuffle(ctx: Any, self: Any, upscale_factor: int) -> Any:
    *batch, channels, height, width = self.shape
    r, n = upscale_factor, len(self.shape) - 3
    blocks = self.reshape(*batch, channels // (r * r), r, r, height, width)
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return blocks.transpose(order).reshape(ctx.size)


@lowers("pixel_unshuffle")
def pixel_unshuffle(ctx: Any, self: Any, downscale_factor: int) -> Any:
    *batch, channels, height, width = self.shape
    r, n = downscale_factor, len(self.shape) - 3
    blocks = self.reshape(*batch, channels, height // r, r, width // r, r)
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return blocks.transpose(order).reshape(ctx.size)


@lowers("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(ctx: Any, self: Any, groups: int) -> Any:
    batch, channels, *rest = self.shape
    return self.reshape(batch, groups, channels // groups, *rest).swapaxes(1, 2).reshape(self.shape)


def _per_axis(pad: tuple[int, ...], ndim: int) -> list[tuple[int, int]]:
    """torch's padding, last dimension first, as (before, after) per axis."""
    pairs = list(zip(pad[::2], pad[1::2], strict=True))
    return [(0, 0)] * (ndim - len(pairs)) + pairs[::-1]


@lowers("constant_pad_nd")
def constant_pad_nd(ctx: Any, self: Any, pad: tuple[int, ...], value: Any = 0) -> Any:
    config = [(before, after, 0) for before, after in _per_axis(pad, self.ndim)]
    return lax.pad(self, cast(value, self.dtype), config)


def _register_padding(name: str, mode: str) -> None:
    def pad(self: Any, padding: tuple[int, ...]) -> Any:
        widths = _per_axis(padding, self.ndim)
        inner = [(max(a, 0), max(b, 0)) for a, b in widths]
        padded = jnp.pad(self, inner, mode=mode)
        cut = tuple(
            slice(max(-a, 0), n - max(-b, 0))
            for (a, b), n in zip(widths, padded.shape, strict=True)
        )
        return padded[cut]

    @lowers(name)
    def forward(ctx: Any, self: Any, padding: tuple[int, ...]) -> Any:
        return pad(self, padding)

    @lowers(f"{name}_backward")
    def backward(ctx: Any, grad_output: Any, self: Any, padding: tuple[int, ...]) -> Any:
        return transpose_of(lambda x: pad(x, padding), self.shape, cast(grad_output, ctx.opmath))


def transpose_of(linear: Callable[[Any], Any], size: tuple[int, ...], grad: Any) -> Any:
    """The gradient of a linear function of an array of `size`, for a given output gradient."""
    like = jax.ShapeDtypeStruct(size, grad.dtype)
    return jax.linear_transpose(linear, like)(grad)[0]


for _rank in (1, 2, 3):
    _register_padding(f"reflection_pad{_rank}d", "reflect")
    _register_padding(f"replication_pad{_rank}d", "edge")
