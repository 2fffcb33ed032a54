"""Embedding bags: sums, means and maxima of rows of a table, and their gradients."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import jax.numpy as jnp
import torch

from trcomp.runtime.dispatch import implements
from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.registry import lowers


class _Mode(IntEnum):
    """torch's numbers for what a bag makes of its rows."""

    SUM = 0
    MEAN = 1
    MAX = 2


def _bag_of_each(offsets: Any, count: int, has_end: bool) -> Any:
    """The bag of each of `count` indices; past the last bag for those behind its end."""
    starts = offsets[:-1] if has_end else offsets
    place = jnp.arange(count, dtype=offsets.dtype)
    bag = jnp.searchsorted(starts, place, side="right").astype(offsets.dtype) - 1
    return jnp.where(place < offsets[-1], bag, starts.shape[0]) if has_end else bag


def _maxima(rows: Any, indices: Any, bag: Any, num_bags: int) -> tuple[Any, Any]:
    """Per bag and column the largest element, and the table's row that it is from (-1: none)."""
    size, count = (num_bags, rows.shape[1]), rows.shape[0]
    largest = jnp.full(size, -jnp.inf, rows.dtype).at[bag].max(rows)
    is_largest = rows == largest.at[bag].get(mode="fill", fill_value=jnp.nan)
    place = jnp.where(is_largest, jnp.arange(count)[:, None], count)
    first = jnp.full(size, count).at[bag].min(place)
    row = indices.at[first].get(mode="fill", fill_value=-1)
    return jnp.where(first < count, largest, 0), row


@lowers("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    ctx: Any,
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = _Mode.SUM,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Any, Any, Any, Any]:
    num_bags = ctx.size[0]
    offset2bag = _bag_of_each(offsets, indices.shape[0], include_last_offset)
    # What is padding belongs to no bag.
    bag = (
        jnp.where(indices == padding_idx, num_bags, offset2bag) if padding_idx >= 0 else offset2bag
    )
    counts = jnp.zeros(ctx.sizes[2], offsets.dtype).at[bag].add(1)
    rows = cast(weight.at[indices].get(mode="clip"), ctx.opmath)
    if mode == _Mode.MAX:
        result, maximum_indices = _maxima(rows, indices, bag, num_bags)
        return result, offset2bag, counts, maximum_indices
    if per_sample_weights is not None:
        rows = rows * cast(per_sample_weights, ctx.opmath)[:, None]
    result = jnp.zeros(ctx.size, ctx.opmath).at[bag].add(rows)
    if mode == _Mode.MEAN:
        result = result / jnp.maximum(counts[:num_bags], 1)[:, None].astype(ctx.opmath)
    return result, offset2bag, counts, jnp.zeros(ctx.sizes[3], indices.dtype)


@implements("_embedding_bag_backward")
def embedding_bag_backward(
    grad: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int = -1,
) -> torch.Tensor:
    """The gradient of the table, dense: the device has no sparse tensors."""
    saved = (indices, offset2bag, bag_size, maximum_indices)
    scaling = (scale_grad_by_freq, mode, per_sample_weights, padding_idx)
    return torch.ops.aten._embedding_bag_dense_backward(grad, *saved, num_weights, *scaling)


@lowers("_embedding_bag_dense_backward")
def embedding_bag_dense_backward(
    ctx: Any,
    grad: Any,
    indices: Any,
    offset2bag: Any,
    bag_size: Any,
    maximum_indices: Any,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Any,
    padding_idx: int = -1,
) -> Any:
    grad, table = cast(grad, ctx.opmath), jnp.zeros(ctx.size, ctx.opmath)
    if mode == _Mode.MAX:
        # A bag without rows names row -1: it is sent beyond the table, where writes are dropped.
        rows = jnp.where(maximum_indices < 0, num_weights, maximum_indices)
        return table.at[rows, jnp.arange(grad.shape[1])].add(grad)
    if mode == _Mode.MEAN:
        counts = jnp.maximum(bag_size[: grad.shape[0]], 1)
        grad = grad / counts[:, None].astype(grad.dtype)
    rows = grad.at[offset2bag].get(mode="fill", fill_value=0)
    if per_sample_weights is not None:
        rows = rows * cast(per_sample_weights, ctx.opmath)[:, None]
    if scale_grad_by_freq:
        uses = jnp.zeros(num_weights, grad.dtype).at[indices].add(1)
        rows = rows / uses[indices][:, None]
    if padding_idx >= 0:
        rows = jnp.where((indices == padding_idx)[:, None], 0, rows)
    return table.at[indices].add(rows)


@lowers("_embedding_bag_per_sample_weights_backward")
def embedding_bag_per_sample_weights_backward(
    ctx: Any,
    grad: Any,
    weight: Any,
    indices: Any,
    offsets: Any,
    offset2bag: Any,
    mode: int,
    padding_idx: int = -1,
) -> Any:
    rows = cast(weight.at[indices].get(mode="clip"), ctx.opmath)
    due = cast(grad, ctx.opmath).at[offset2bag].get(mode="fill", fill_value=0)
    slope = jnp.sum(rows * due, axis=-1)
    return jnp.where(indices == padding_idx, 0, slope) if padding_idx >= 0 else slope
