"""Scaled dot-product attention, kept whole: one node forward and one backward instead of thirty."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from trcomp.runtime import draws
from trcomp.runtime.debugging import wrapped
from trcomp.runtime.dispatch import KEY, check_one_dtype, implement, library
from trcomp.runtime.draws import Key
from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.philox import keep_mask
from trcomp.runtime.ops.registry import find, lowers
from trcomp.runtime.recording import Lifted, record
from trcomp.runtime.storage import output
from trcomp.runtime.whole import is_real, is_traced

_math = torch.ops.aten._scaled_dot_product_attention_math.default


def _swap(array: Any) -> Any:
    return jnp.swapaxes(array, -1, -2)


def _probabilities(query: Any, key: Any, mask: Any, is_causal: bool, scale: Any) -> Any:
    """softmax(q k^T * scale + mask) in float32 or wider, zero for a row that is masked whole."""
    wide = jnp.promote_types(query.dtype, np.float32)
    scores = cast(query @ _swap(key), wide) * cast(scale, wide)
    if is_causal:
        rows, columns = scores.shape[-2:]
        scores = jnp.where(np.tri(rows, columns, dtype=bool), scores, -jnp.inf)
    if mask is not None:
        if mask.dtype == np.bool_:
            scores = jnp.where(mask, scores, -jnp.inf)
        else:
            scores = scores + cast(mask, wide)
    highest = jnp.max(scores, -1, keepdims=True)
    masked = jnp.isneginf(highest)
    weights = jnp.exp(scores - jnp.where(masked, 0, highest))
    total = jnp.sum(weights, -1, keepdims=True)
    return weights / jnp.where(masked, 1, total)


@lowers("trcomp::attention")
def _attention(
    ctx: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    is_causal: bool,
    scale: Any,
    dropout: Any,
    draw: Any,
) -> Any:
    weights = cast(_probabilities(query, key, mask, is_causal, scale), query.dtype)
    used = weights
    if dropout is not None:
        used = _dropped(weights, dropout, draw)
    return used @ value, weights


def _dropped(weights: Any, dropout: Any, draw: Any) -> Any:
    kept = 1 - cast(dropout, np.dtype("float64"))
    factor = jnp.where(kept > 0, 1 / kept, 0).astype(weights.dtype)
    return jnp.where(keep_mask(draw, weights.shape, kept), weights * factor, 0)


@lowers("trcomp::attention_backward")
def _attention_backward(
    ctx: Any,
    grad: Any,
    query: Any,
    key: Any,
    value: Any,
    weights: Any,
    mask: Any,
    scale: Any,
    dropout: Any,
    draw: Any,
    mask_grad: bool,
) -> Any:
    wide = jnp.promote_types(query.dtype, np.float32)
    used, grad_weights = weights, grad @ _swap(value)
    if dropout is not None:
        # The draw's key gives the forward's mask again; nothing is kept for it.
        used = _dropped(weights, dropout, draw)
        grad_weights = _dropped(grad_weights, dropout, draw)
    grad_value = _swap(used) @ grad
    weights, grad_weights = cast(weights, wide), cast(grad_weights, wide)
    inner = jnp.sum(weights * grad_weights, -1, keepdims=True)
    grad_scores = weights * (grad_weights - inner)
    scaled = cast(grad_scores * cast(scale, wide), query.dtype)
    made = [scaled @ key, _swap(scaled) @ query, grad_value]
    if mask_grad:
        made.append(_summed_to(grad_scores, mask.shape))
    return made


def _summed_to(array: Any, shape: tuple[int, ...]) -> Any:
    """The gradient of an operand that was broadcast from `shape`."""
    lead = array.ndim - len(shape)
    axes = [*range(lead)]
    axes += [d + lead for d, n in enumerate(shape) if n == 1 and array.shape[d + lead] != 1]
    return jnp.sum(array, tuple(axes)).reshape(shape)


class _Attention(torch.autograd.Function):
    """The pair of nodes as one differentiable step."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        is_causal: bool,
        scale: float,
        dropout: float,
    ) -> torch.Tensor:
        draw = draws.next_key() if dropout else None
        made, weights = run(query, key, value, mask, is_causal, scale, dropout, draw)
        ctx.save_for_backward(query, key, value, mask, weights)
        ctx.is_causal, ctx.scale, ctx.dropout, ctx.draw = is_causal, scale, dropout, draw
        return made

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        query, key, value, mask, weights = ctx.saved_tensors
        if torch.is_grad_enabled() and not ctx.dropout:
            return _differentiable_backward(ctx, grad, query, key, value, mask)
        mask_grad = ctx.needs_input_grad[3]
        made = run_backward(
            grad, query, key, value, weights, mask, ctx.scale, ctx.dropout, ctx.draw, mask_grad
        )
        return (*made[:3], made[3] if mask_grad else None, None, None, None)


def _differentiable_backward(
    ctx: Any,
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
) -> tuple[Any, ...]:
    """Gradients as torch's own composition, which can be differentiated once more."""
    operands = [
        t
        for t, needed in zip((query, key, value, mask), ctx.needs_input_grad, strict=False)
        if needed
    ]
    made = _math(query, key, value, mask, 0.0, ctx.is_causal, scale=ctx.scale)[0]
    grads = iter(torch.autograd.grad(made, operands, grad, create_graph=True))  # type: ignore[arg-type]
    return (
        *(next(grads) if needed else None for needed in ctx.needs_input_grad[:4]),
        None,
        None,
        None,
    )


def run(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float,
    dropout: float,
    draw: Key | None,
) -> list[torch.Tensor]:
    """The result and the attention weights, `(..., length, key length)`, before any are dropped."""
    batch = tuple(torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2]))
    rows, columns = query.shape[-2], key.shape[-2]
    dropped = (None, None) if draw is None else (Lifted(dropout), draw)
    return record(
        "trcomp::attention",
        (query, key, value, mask, is_causal, Lifted(scale), *dropped),
        [
            output((*batch, rows, value.shape[-1]), query.dtype),
            output((*batch, rows, columns), query.dtype),
        ],
    )


def run_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    weights: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    dropout: float,
    draw: Key | None,
    mask_grad: bool,
) -> list[torch.Tensor]:
    """Gradients of query, key and value, and of the mask if `mask_grad`."""
    operands = [query, key, value, *([mask] if mask is not None and mask_grad else [])]
    outputs = [output(tuple(t.shape), t.dtype) for t in operands]
    dropped = (None, None) if draw is None else (Lifted(dropout), draw)
    return record(
        "trcomp::attention_backward",
        (grad, query, key, value, weights, mask, Lifted(scale), *dropped, mask_grad),
        outputs,
    )


def _kept_whole(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> bool:
    """Whether the nodes here cover the call: equal batches and dtypes."""
    same = query.dtype == key.dtype == value.dtype and query.dtype.is_floating_point
    if mask is not None and mask.dtype not in (torch.bool, query.dtype):
        return False
    return (
        same
        and query.dim() >= 3
        and query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
        and query.shape[-1] == key.shape[-1]
        and key.shape[-2] == value.shape[-2]
    )


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """softmax(query key^T * scale + mask) value.

    Args:
        query: `(..., heads, length, width)`; key and value likewise, of their own length.
        attn_mask: Broadcastable to `(..., length, key length)`: bool (true takes part) or added.
        dropout_p: Probability with which an attention weight is dropped.
        is_causal: Each row sees the columns up to its own.
        scale: 1 / sqrt(width) by default.
        enable_gqa: Key and value may have fewer heads, each shared by a group of query heads.
    """
    if not query.dtype == key.dtype == value.dtype:
        check_one_dtype("scaled_dot_product_attention", (query, key, value))
    if enable_gqa and query.dim() > 3 and query.shape[-3] != key.shape[-3]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    made: torch.Tensor
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    tensors = [query, key, value, *([] if attn_mask is None else [attn_mask])]
    whole = _kept_whole(query, key, value, attn_mask) and not (is_causal and attn_mask is not None)
    if whole and is_real(*tensors):
        return _Attention.apply(query, key, value, attn_mask, is_causal, float(factor), dropout_p)
    if whole and is_traced(*tensors):
        made = traced_attention(query, key, value, attn_mask, is_causal, factor, dropout_p)[0]
    else:
        made = _math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
    return made


_op = find("scaled_dot_product_attention")
implement(_op, scaled_dot_product_attention)
library.impl(
    "scaled_dot_product_attention",
    wrapped(_op, scaled_dot_product_attention),
    f"Autograd{KEY}",
)

# A tracer sees neither a kernel written in Python nor its autograd function: for it attention is an
# operator, with autograd of its own.
_operators = torch.library.Library("trcomp", "FRAGMENT")
_operators.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, bool is_causal, float scale, "
    "float dropout) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.nondeterministic_seeded,),
)
_operators.define(
    "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor weights, "
    "Tensor? mask, Tensor draw, float scale, float dropout, bool mask_grad) -> Tensor[]"
)
traced_attention = torch.ops.trcomp.attention.default


def _attention_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float,
    dropout: float,
) -> tuple[torch.Tensor, ...]:
    draw = draws.as_tensor(draws.next_key()) if dropout else query.new_zeros((), dtype=torch.int64)
    key_operand = draw if dropout else None
    return (*run(query, key, value, mask, is_causal, scale, dropout, key_operand), draw)


def _attention_backward_kernel(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    weights: torch.Tensor,
    mask: torch.Tensor | None,
    draw: torch.Tensor,
    scale: float,
    dropout: float,
    mask_grad: bool,
) -> list[torch.Tensor]:
    key_operand = draw if dropout else None
    return run_backward(
        grad, query, key, value, weights, mask, scale, dropout, key_operand, mask_grad
    )


_operators.impl("attention", _attention_kernel, KEY)
_operators.impl("attention_backward", _attention_backward_kernel, KEY)


@torch.library.register_fake("trcomp::attention", lib=_operators)
def _attention_shapes(query: Any, key: Any, value: Any, *rest: Any) -> Any:
    rows = query.shape[:-1]
    made = query.new_empty((*rows, value.shape[-1]))
    return made, query.new_empty((*rows, key.shape[-2])), query.new_empty((), dtype=torch.int64)


@torch.library.register_fake("trcomp::attention_backward", lib=_operators)
def _attention_backward_shapes(
    grad: Any, query: Any, key: Any, value: Any, weights: Any, mask: Any, *rest: Any
) -> Any:
    operands = [query, key, value, *([mask] if rest[-1] else [])]
    return [operand.new_empty(operand.shape) for operand in operands]


def _keep_for_backward(ctx: Any, inputs: Any, output: Any) -> None:
    query, key, value, mask, _, ctx.scale, ctx.dropout = inputs
    ctx.save_for_backward(query, key, value, mask, output[1], output[2])
    ctx.mark_non_differentiable(output[1], output[2])


def _traced_backward(ctx: Any, grad: torch.Tensor, *unused: Any) -> tuple[Any, ...]:
    query, key, value, mask, weights, draw = ctx.saved_tensors
    mask_grad = ctx.needs_input_grad[3]
    made = torch.ops.trcomp.attention_backward.default(
        grad, query, key, value, weights, mask, draw, ctx.scale, ctx.dropout, mask_grad
    )
    return (*made[:3], made[3] if mask_grad else None, None, None, None)


torch.library.register_autograd(
    "trcomp::attention", _traced_backward, setup_context=_keep_for_backward, lib=_operators
)
