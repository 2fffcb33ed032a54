"""The CTC loss: a loop over time inside one node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from trcomp.runtime.device import DEVICE
from trcomp.runtime.dispatch import implements
from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops.registry import lowers
from trcomp.runtime.recording import record
from trcomp.runtime.storage import output

Lengths = Sequence[int] | torch.Tensor


def _log_sum(*terms: Any) -> Any:
    """log of a sum of exponentials whose derivative is zero where all terms are -inf."""
    stacked = jnp.stack(terms)
    highest = lax.stop_gradient(jnp.max(stacked, 0))
    dead = jnp.isneginf(highest)
    total = jnp.sum(jnp.exp(stacked - jnp.where(dead, 0, highest)), 0)
    return jnp.where(dead, -jnp.inf, jnp.log(jnp.where(dead, 1, total)) + highest)


def _labels(targets: Any, target_lengths: Any, width: int, blank: int) -> Any:
    """Each sequence's targets with blanks around them, `(batch, 2 * width + 1)`."""
    batch = len(target_lengths)
    if targets.ndim == 1:  # one sequence after another
        first = jnp.cumsum(target_lengths) - target_lengths
        rows = first[:, None] + jnp.arange(width)
        targets = targets[jnp.minimum(rows, max(len(targets) - 1, 0))] if len(targets) else rows
    labels = jnp.full((batch, 2 * width + 1), blank, targets.dtype)
    return labels.at[:, 1::2].set(targets[:, :width])


def _shifted(alpha: Any, by: int) -> Any:
    """Each state's predecessor `by` places before it; -inf where there is none."""
    return jnp.pad(alpha, ((0, 0), (by, 0)), constant_values=-jnp.inf)[:, : alpha.shape[1]]


def _ctc(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, width: int, blank: int
) -> tuple[Any, Any]:
    """Negative log likelihoods, `(batch,)`, and the states' log_alpha, `(batch, time, states)`."""
    labels = _labels(targets, target_lengths, width, blank)
    emitted = jnp.take_along_axis(log_probs, labels[None], 2)
    state = jnp.arange(labels.shape[1])
    skips = (labels != blank) & (labels != jnp.roll(labels, 2, 1)) & (state > 1)
    begins = (state == 0) | ((state == 1) & (target_lengths[:, None] > 0))
    first = jnp.where(begins, emitted[0], -jnp.inf)

    def step(alpha: Any, now: tuple[Any, Any]) -> tuple[Any, Any]:
        time, share = now
        skipped = jnp.where(skips, _shifted(alpha, 2), -jnp.inf)
        new = _log_sum(alpha, _shifted(alpha, 1), skipped) + share
        alpha = jnp.where(time < input_lengths[:, None], new, alpha)
        return alpha, alpha

    steps = (jnp.arange(1, len(log_probs)), emitted[1:])
    last, rest = lax.scan(step, first, steps)
    ends = 2 * target_lengths[:, None]
    final = jnp.take_along_axis(last, ends, 1)[:, 0]
    before = jnp.take_along_axis(last, jnp.maximum(ends - 1, 0), 1)[:, 0]
    likelihood = _log_sum(final, jnp.where(target_lengths > 0, before, -jnp.inf))
    nothing = jnp.where(target_lengths > 0, -jnp.inf, 0)
    likelihood = jnp.where(input_lengths > 0, likelihood, nothing)
    return -likelihood, jnp.moveaxis(jnp.concatenate([first[None], rest]), 0, 1)


def _as_batch(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any
) -> tuple[Any, Any, Any, Any]:
    wide = cast(log_probs, jnp.promote_types(log_probs.dtype, np.float32))
    if wide.ndim == 2:
        wide = wide[:, None]
    return wide, targets, input_lengths.reshape(-1), target_lengths.reshape(-1)


@lowers("trcomp::ctc_loss")
def _ctc_loss(
    ctx: Any,
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    width: int,
    blank: int,
    zero_infinity: bool,
) -> Any:
    operands = _as_batch(log_probs, targets, input_lengths, target_lengths)
    loss, alpha = _ctc(*operands, width, blank)
    if zero_infinity:
        loss = jnp.where(jnp.isposinf(loss), 0, loss)
    return tuple(made.reshape(size) for made, size in zip((loss, alpha), ctx.sizes, strict=True))


@lowers("trcomp::ctc_loss_backward")
def _ctc_loss_backward(
    ctx: Any,
    grad: Any,
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    width: int,
    blank: int,
    zero_infinity: bool,
) -> Any:
    wide, labels, steps, counts = _as_batch(log_probs, targets, input_lengths, target_lengths)

    def forward(wide: Any) -> Any:
        return _ctc(wide, labels, steps, counts, width, blank)[0]

    loss, pull_back = jax.vjp(forward, wide)
    (slope,) = pull_back(jnp.ones_like(loss))
    # torch's gradient is that of log_softmax's input: log_softmax's own backward leaves it alone.
    made = (jnp.exp(wide) + slope) * cast(grad, wide.dtype).reshape(1, -1, 1)
    impossible = jnp.isposinf(loss)[:, None]
    made = jnp.where(impossible, 0 if zero_infinity else jnp.nan, made)
    time = jnp.arange(len(wide))[:, None, None]
    return jnp.where(time < steps[:, None], made, 0).reshape(ctx.size)


def _on_device(lengths: Lengths) -> torch.Tensor:
    return torch.as_tensor(lengths, dtype=torch.int64).to(DEVICE)


def _check(name: str, lengths: Lengths, most: int) -> None:
    """Refuse lengths that the host knows to reach beyond what is there."""
    known = lengths.tolist() if isinstance(lengths, torch.Tensor) else list(lengths)
    for length in known:
        if not 0 <= length <= most:
            raise RuntimeError(
                f"Expected {name} to have values from 0 to {most}, but got value {length}"
            )


def _width(targets: torch.Tensor, target_lengths: Lengths) -> int:
    """The most targets that a sequence may have."""
    if targets.dim() == 2:
        return targets.shape[1]
    return int(max(target_lengths, default=0))


@implements("_ctc_loss", "_ctc_loss.Tensor")
def ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Negative log likelihoods, `(batch,)`, and what torch calls log_alpha.

    Args:
        log_probs: `(time, batch, classes)`, or `(time, classes)` for one sequence.
        targets: `(batch, length)`, or all sequences one after another.
        input_lengths: Steps of each sequence.
        target_lengths: Targets of each sequence.
        blank: The class that stands for no target.
        zero_infinity: Whether an impossible alignment counts as a loss of zero.

    Raises:
        RuntimeError: A length is beyond what is there, or `blank` is no class.
    """
    if not 0 <= blank < log_probs.shape[-1]:
        raise RuntimeError("blank must be in label range")
    width = _width(targets, target_lengths)
    _check("input_lengths", input_lengths, log_probs.shape[0])
    _check("target_lengths", target_lengths, width)
    batch = (log_probs.shape[1],) if log_probs.dim() == 3 else ()
    operands = (
        log_probs,
        targets.to(DEVICE),
        _on_device(input_lengths),
        _on_device(target_lengths),
    )
    outputs = [
        output(batch, log_probs.dtype),
        output((*batch, log_probs.shape[0], 2 * width + 1), log_probs.dtype),
    ]
    made = record("trcomp::ctc_loss", (*operands, width, blank, zero_infinity), outputs)
    return made[0], made[1]


@implements("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def ctc_loss_backward(
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    neg_log_likelihood: torch.Tensor,
    log_alpha: torch.Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """The gradient of `log_probs` as torch defines it."""
    operands = (targets.to(DEVICE), _on_device(input_lengths), _on_device(target_lengths))
    width = (log_alpha.shape[-1] - 1) // 2
    made = record(
        "trcomp::ctc_loss_backward",
        (grad, log_probs, *operands, width, blank, zero_infinity),
        [output(tuple(log_probs.shape), log_probs.dtype)],
    )
    return made[0]
