"""The margin losses over classes, forward and backward."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils._pytree import tree_map

from trcomp.runtime.dispatch import implements, to_meta
from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.registry import find, lowers
from trcomp.runtime.recording import Lifted, record
from trcomp.runtime.storage import output

_NONE, _MEAN = 0, 1
"""aten's reduction codes, but for that of the sum."""


def _wide(array: Any) -> Any:
    return cast(array, jnp.promote_types(array.dtype, np.float32))


def _rows(array: Any) -> Any:
    """Scores or classes as `(batch, classes)`; a lone number is a batch of one class."""
    return array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)


def _hinge(array: Any) -> Any:
    """What lies above zero; the derivative at zero is zero, as in torch."""
    return jnp.where(array > 0, array, 0)


def _reduced(losses: Any, reduction: int, size: tuple[int, ...]) -> Any:
    if reduction == _NONE:
        return losses.reshape(size)
    return jnp.mean(losses) if reduction == _MEAN else jnp.sum(losses)


def _one_class(
    self: Any, target: Any, p: int, margin: Any, weight: Any, reduction: int, size: tuple[int, ...]
) -> Any:
    scores = _rows(self)
    named = target.reshape(-1, 1)
    own = jnp.take_along_axis(scores, named, 1)
    short = _hinge(cast(margin, scores.dtype) - own + scores) ** p
    if weight is not None:
        short = short * cast(weight, scores.dtype)[named]
    others = jnp.arange(scores.shape[1]) != named
    return _reduced(jnp.mean(jnp.where(others, short, 0), 1), reduction, size)


def _all_targets(target: Any) -> Any:
    """Whether each row names each class before its first negative entry, `(batch, classes)`."""
    named = _rows(target)
    counted = jnp.cumsum(named < 0, 1) == 0
    rows = jnp.arange(len(named))[:, None]
    marks = jnp.zeros(named.shape, bool)
    return marks.at[rows, jnp.where(counted, named, marks.shape[1])].set(True, mode="drop")


def _many_classes(self: Any, target: Any, reduction: int, size: tuple[int, ...]) -> Any:
    scores = _rows(self)
    named = target.reshape(scores.shape)
    counted = jnp.cumsum(named < 0, 1) == 0
    own = jnp.take_along_axis(scores, jnp.where(counted, named, 0), 1)
    short = _hinge(1 - own[:, :, None] + scores[:, None, :])
    pairs = counted[:, :, None] & ~_all_targets(target)[:, None, :]
    losses = jnp.sum(jnp.where(pairs, short, 0), (1, 2)) / scores.shape[1]
    return _reduced(losses, reduction, size)


@lowers("multi_margin_loss", static=("p",))
def multi_margin_loss(
    ctx: Any,
    self: Any,
    target: Any,
    p: int = 1,
    margin: Any = 1,
    weight: Any = None,
    reduction: int = _MEAN,
) -> Any:
    return _one_class(_wide(self), target, p, margin, weight, reduction, ctx.size)


@lowers("trcomp::multi_margin_loss_backward")
def _multi_margin_loss_backward(
    ctx: Any,
    grad_output: Any,
    self: Any,
    target: Any,
    p: int,
    margin: Any,
    weight: Any,
    reduction: int,
) -> Any:
    def forward(scores: Any) -> Any:
        return _one_class(scores, target, p, margin, weight, reduction, grad_output.shape)

    return jax.vjp(forward, _wide(self))[1](_wide(grad_output))


@implements("multi_margin_loss_backward")
def multi_margin_loss_backward(
    grad_output: torch.Tensor,
    self: torch.Tensor,
    target: torch.Tensor,
    p: float,
    margin: float,
    weight: torch.Tensor | None = None,
    reduction: int = _MEAN,
) -> torch.Tensor:
    """The gradient of the scores."""
    arguments = (grad_output, self, target, int(p), Lifted(float(margin)), weight, reduction)
    made = record(
        "trcomp::multi_margin_loss_backward", arguments, [output(tuple(self.shape), self.dtype)]
    )
    return made[0]


@lowers("trcomp::multilabel_margin_loss")
def _multilabel_margin_loss(ctx: Any, self: Any, target: Any, reduction: int) -> Any:
    loss = _many_classes(_wide(self), target, reduction, ctx.size)
    return loss, _all_targets(target).reshape(target.shape)


@implements("multilabel_margin_loss_forward")
def multilabel_margin_loss_forward(
    self: torch.Tensor, target: torch.Tensor, reduction: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and which classes are targets."""
    # torch's meta kernel refuses sizes that do not fit; its result for one row is not the CPU's.
    find("multilabel_margin_loss_forward")(*tree_map(to_meta, (self, target)), reduction)
    each = reduction == _NONE and self.dim() > 1
    outputs = [
        output((self.shape[0],) if each else (), self.dtype),
        output(tuple(target.shape), self.dtype),
    ]
    made = record("trcomp::multilabel_margin_loss", (self, target, reduction), outputs)
    return made[0], made[1]


@lowers("trcomp::multilabel_margin_loss_backward")
def _multilabel_margin_loss_backward(
    ctx: Any, grad_output: Any, self: Any, target: Any, reduction: int
) -> Any:
    def forward(scores: Any) -> Any:
        return _many_classes(scores, target, reduction, grad_output.shape)

    return jax.vjp(forward, _wide(self))[1](_wide(grad_output))


@implements("multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(
    grad_output: torch.Tensor,
    self: torch.Tensor,
    target: torch.Tensor,
    reduction: int,
    is_target: torch.Tensor,
) -> torch.Tensor:
    """The gradient of the scores."""
    made = record(
        "trcomp::multilabel_margin_loss_backward",
        (grad_output, self, target, reduction),
        [output(tuple(self.shape), self.dtype)],
    )
    return made[0]
