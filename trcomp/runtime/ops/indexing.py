"""Reads and writes by index tensors and masks; a mask is counted only where nothing else fits.

An index out of range is clamped or dropped: a lazy device can't raise at the line that is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import torch

from trcomp.runtime import storage
from trcomp.runtime.device import DEVICE
from trcomp.runtime.dispatch import Recorder, implements
from trcomp.runtime.dtypes import cast
from trcomp.runtime.fallback import run_on_cpu
from trcomp.runtime.ops.registry import RULES, find, lowers
from trcomp.runtime.recording import emit, put_back

_MASKS = (torch.bool, torch.uint8)
Indices = Sequence[torch.Tensor | None]


def _subscript(indices: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(slice(None) if place is None else place for place in indices)


@lowers("index.Tensor")
def index(ctx: Any, self: Any, indices: Sequence[Any]) -> Any:
    return self.at[_subscript(indices)].get(mode="clip")


@lowers("index_put")
def index_put(
    ctx: Any, self: Any, indices: Sequence[Any], values: Any, accumulate: bool = False
) -> Any:
    places, values = self.at[_subscript(indices)], cast(values, self.dtype)
    if not accumulate:
        return places.set(values)
    return places.max(values) if self.dtype == jnp.bool_ else places.add(values)


@lowers("trcomp::mask_put")
def mask_put(ctx: Any, self: Any, mask: Any, values: Any, first: int, accumulate: bool) -> Any:
    """`self[..., mask] = values`, the mask standing at dimension `first`, without counting it.

    `values` has one row for each true element of the mask, or one row for all of them.
    """
    rest = self.shape[first + mask.ndim :]
    mask, values = cast(mask, jnp.bool_).reshape(-1), cast(values, self.dtype)
    folded = self.reshape(*self.shape[:first], mask.size, *rest)
    row_axis = values.ndim - 1 - len(rest)
    if row_axis >= 0 and values.shape[row_axis] != 1:
        if not values.size:
            return self
        # Row k goes to the k-th true element.
        values = jnp.take(values, jnp.cumsum(mask) - 1, axis=row_axis, mode="clip")
    chosen = mask.reshape(mask.size, *(1,) * len(rest))
    result = jnp.where(chosen, folded + values if accumulate else values, folded)
    return result.reshape(self.shape)


@lowers("masked_scatter")
def masked_scatter(ctx: Any, self: Any, mask: Any, source: Any) -> Any:
    mask = jnp.broadcast_to(mask, ctx.size)
    self = jnp.broadcast_to(self, ctx.size)
    return self if not source.size else mask_put(ctx, self, mask, source.reshape(-1), 0, False)


def split_masks(indices: Indices) -> list[torch.Tensor | None]:
    """Index tensors with each mask replaced by the places where it is true, which must be read."""
    places: list[torch.Tensor | None] = []
    for place in indices:
        if place is None:
            places.append(None)
        elif place.dtype in _MASKS:
            places += torch.nonzero(place.to(DEVICE)).unbind(1)
        else:
            places.append(place.to(DEVICE))
    return places


_record_index = Recorder(find("index.Tensor"), RULES["index.Tensor"])
_record_index_put_ = Recorder(find("index_put"), RULES["index_put"], find("index_put_"))


@implements("index.Tensor", "_unsafe_index.Tensor")
def index_tensor(self: torch.Tensor, indices: Indices) -> torch.Tensor:
    """`self[indices]`."""
    return _record_index(self, split_masks(indices))


@implements("index_put_")
def index_put_(
    self: torch.Tensor, indices: Indices, values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """`self[indices] = values`, or `+=`; a mask by itself is not read.

    Raises:
        RuntimeError: `values` has another dtype.
    """
    if values.dtype != self.dtype:
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, "
            f"got {self.dtype} for the destination and {values.dtype} for the source."
        )
    given = [(d, place) for d, place in enumerate(indices) if place is not None]
    if len(given) == 1 and given[0][1].dtype in _MASKS:
        first, mask = given[0]
        size = tuple(self.size())
        out = storage.output(size, self.dtype)
        arguments = (self, mask.to(DEVICE), values, first, accumulate)
        put_back(self, emit("trcomp::mask_put", arguments, [out]), 0)
        return self
    return _record_index_put_(self, split_masks(indices), values, accumulate)


@implements("index_put", "_unsafe_index_put")
def index_put_copy(
    self: torch.Tensor, indices: Indices, values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """A copy of `self` with `values` at the indices."""
    return index_put_(self.clone(), indices, values, accumulate)


@implements("_index_put_impl_")
def index_put_impl_(
    self: torch.Tensor,
    indices: Indices,
    values: torch.Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> torch.Tensor:
    """`index_put_` under the name that torch's own code calls."""
    return index_put_(self, indices, values, accumulate)


@lowers("take")
def take(ctx: Any, self: Any, index: Any) -> Any:
    return self.reshape(-1).at[index].get(mode="clip")


@lowers("put")
def put(ctx: Any, self: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    values = source.reshape(-1)
    flat = index_put(ctx, self.reshape(-1), (index.reshape(-1),), values, accumulate)
    return flat.reshape(self.shape)


@lowers("embedding")
def embedding(
    ctx: Any,
    weight: Any,
    indices: Any,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    return weight.at[indices].get(mode="clip")


@lowers("embedding_dense_backward")
def embedding_dense_backward(
    ctx: Any,
    grad_output: Any,
    indices: Any,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Any:
    places = indices.reshape(-1)
    grad = cast(grad_output, ctx.opmath).reshape(places.size, *ctx.size[1:])
    if scale_grad_by_freq:
        counts = jnp.zeros(num_weights, grad.dtype).at[places].add(1)
        grad = grad / counts[places][:, None]
    if padding_idx >= 0:
        grad = jnp.where((places == padding_idx)[:, None], 0, grad)
    return jnp.zeros(ctx.size, grad.dtype).at[places].add(grad)


@implements("repeat_interleave.Tensor")
def repeat_interleave_tensor(
    repeats: torch.Tensor, *, output_size: int | None = None
) -> torch.Tensor:
    """For each position of the result, which element stands there; read only if no size is told."""
    if output_size is None:
        return run_on_cpu(find("repeat_interleave.Tensor"), repeats)
    positions = torch.arange(output_size, device=repeats.device)
    return torch.searchsorted(repeats.cumsum(0), positions, right=True).to(repeats.dtype)


@implements("embedding_renorm_")
def embedding_renorm_(
    self: torch.Tensor, indices: torch.Tensor, max_norm: float, norm_type: float
) -> torch.Tensor:
    """Scale down the rows of a table that are about to be read and longer than `max_norm`."""
    places = indices.reshape(-1)
    rows = self[places]
    norms = torch.linalg.vector_norm(rows, norm_type, dim=1, keepdim=True)
    # A row that is named twice is written twice with the same numbers.
    shorter = torch.where(norms > max_norm, rows * (max_norm / (norms + 1e-7)), rows)
    return self.index_put_((places,), shorter.to(self.dtype))
