"""Reading an image at places that a grid names: nearest, linear and cubic, and their gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.registry import lowers

_CUBIC = -0.75
"""The cubic convolution coefficient that torch uses."""


class _Mode(IntEnum):
    """torch's numbers for ways of interpolating."""

    LINEAR = 0
    NEAREST = 1
    CUBIC = 2


class _Edge(IntEnum):
    """torch's numbers for what lies outside the image."""

    ZEROS = 0
    BORDER = 1
    REFLECTION = 2


class _Rule(NamedTuple):
    mode: int
    edge: int
    align_corners: bool

    def to_place(self, coordinate: Any, extent: int) -> Any:
        """A coordinate from -1 to 1 in pixels."""
        if self.align_corners:
            return (coordinate + 1) / 2 * (extent - 1)
        return ((coordinate + 1) * extent - 1) / 2

    def inside(self, place: Any, extent: int) -> Any:
        """A place in pixels brought into the image, if the edge rule does that."""
        if self.edge == _Edge.ZEROS:
            return place
        if self.edge == _Edge.REFLECTION:
            low, span = (0.0, extent - 1) if self.align_corners else (-0.5, extent)
            place = _reflected(place, low, span)
        # By comparisons: a place at the very edge has no slope, as in torch.
        return jnp.where(place <= 0, 0, jnp.where(place >= extent - 1, extent - 1, place))


def _reflected(place: Any, low: float, span: int) -> Any:
    """A place folded back and forth between `low` and `low + span`."""
    if not span:
        return jnp.zeros_like(place)
    distance = jnp.where(place < low, low - place, place - low)
    flips = jnp.floor(distance / span)
    rest = distance - jax.lax.stop_gradient(flips) * span
    return jnp.where(flips % 2 == 0, rest + low, span - rest + low)


def _pick(image: Any, places: Sequence[Any]) -> Any:
    """The pixels at whole places, (batch, *grid, channels); zero outside the image."""
    extents = image.shape[2:]
    within: Any = True
    for place, extent in zip(places, extents, strict=True):
        within = within & (place >= 0) & (place < extent)
    whole = [
        jnp.clip(place, 0, extent - 1).astype(jnp.int32)
        for place, extent in zip(places, extents, strict=True)
    ]
    batch = jnp.arange(image.shape[0]).reshape(-1, *(1,) * (whole[0].ndim - 1))
    rows = jnp.moveaxis(image, 1, -1)[(batch, *whole)]
    return jnp.where(within[..., None], rows, 0)


def _cubic_weights(t: Any) -> list[Any]:
    near = [(_CUBIC + 2) * x**3 - (_CUBIC + 3) * x**2 + 1 for x in (t, 1 - t)]
    far = [_CUBIC * (x**3 - 5 * x**2 + 8 * x - 4) for x in (t + 1, 2 - t)]
    return [far[0], near[0], near[1], far[1]]


def _weighted(
    image: Any, choices: Sequence[Sequence[tuple[Any, Any]]], inside: Callable[[Any, int], Any]
) -> Any:
    """Sum of pixels times weights over every combination of (place, weight) per dimension."""
    combinations = list(itertools.product(*choices))
    weights = jnp.stack([math.prod(weight for _, weight in chosen) for chosen in combinations], 1)
    places = [
        inside(jnp.stack([chosen[d][0] for chosen in combinations], 1), extent)
        for d, extent in enumerate(image.shape[2:])
    ]
    # One gather, and for the gradient one scatter, whatever the number of combinations.
    return jnp.sum(_pick(image, places) * weights[..., None], axis=1)


def _sample(image: Any, grid: Any, rule: _Rule) -> Any:
    """The image at a grid's places, (batch, channels, *grid)."""
    extents = image.shape[2:]
    # The grid names the last dimension first.
    places = [rule.to_place(grid[..., -1 - d], extent) for d, extent in enumerate(extents)]
    if rule.mode != _Mode.CUBIC:
        places = [rule.inside(place, n) for place, n in zip(places, extents, strict=True)]
    if rule.mode == _Mode.NEAREST:
        result = _pick(image, [jnp.round(place) for place in places])
    else:
        floors = [jax.lax.stop_gradient(jnp.floor(place)) for place in places]
        parts = [place - floor for place, floor in zip(places, floors, strict=True)]
        if rule.mode == _Mode.LINEAR:
            weights, first = [[1 - t, t] for t in parts], 0
        else:
            weights, first = [_cubic_weights(t) for t in parts], -1
        choices = [
            [(floor + first + k, weight) for k, weight in enumerate(row)]
            for floor, row in zip(floors, weights, strict=True)
        ]
        keep = rule.mode == _Mode.LINEAR
        result = _weighted(image, choices, (lambda p, n: p) if keep else rule.inside)
    return jnp.moveaxis(result, -1, 1)


@lowers("grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(
    ctx: Any,
    input: Any,
    grid: Any,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Any:
    rule = _Rule(interpolation_mode, padding_mode, align_corners)
    return _sample(cast(input, ctx.opmath), cast(grid, ctx.opmath), rule)


@lowers("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampler_backward(
    ctx: Any,
    grad_output: Any,
    input: Any,
    grid: Any,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: tuple[bool, bool],
) -> tuple[Any, Any]:
    rule = _Rule(interpolation_mode, padding_mode, align_corners)
    image, places, grad = (cast(x, ctx.opmath) for x in (input, grid, grad_output))
    _, pull = jax.vjp(lambda x, g: _sample(x, g, rule), image, places)
    to_image, to_grid = pull(grad)
    return (to_image if output_mask[0] else None), to_grid
