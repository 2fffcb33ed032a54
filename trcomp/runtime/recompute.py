"""Activation checkpointing stays what it is: recomputed layers are not merged with the first ones.

In one graph, what `torch.utils.checkpoint` computes again in the backward pass is a duplicate of
what the forward pass computed, and XLA would keep the first result in memory rather than compute
twice. So the inputs of a recomputation pass through an optimization barrier: another value to the
compiler, the same numbers. Draws need no barrier: the random state is set back, and each has a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jax import lax
from torch.utils import checkpoint

from trcomp.runtime import storage
from trcomp.runtime.ops.registry import lowers
from trcomp.runtime.recording import is_device_tensor, record
from trcomp.runtime.storage import output


@lowers("trcomp::barrier")
def _barrier(ctx: Any, *tensors: Any) -> Any:
    return lax.optimization_barrier(tensors)


class _Barrier(torch.autograd.Function):
    """The identity, which XLA does not see through; gradients pass it as they are."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(barrier(tensors))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return grads


def barrier(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies that XLA neither merges with, nor moves across, what they were made from.

    Args:
        tensors: On the device. The copies take no part in autograd.
    """
    outputs = [output(tuple(t.size()), t.dtype, storage.stride_as(t, None)) for t in tensors]
    return record("trcomp::barrier", tuple(tensors), outputs)


def _behind_barrier(arguments: Sequence[Any]) -> list[Any]:
    """The arguments of a recomputation, device tensors behind one barrier."""
    places = [i for i, argument in enumerate(arguments) if is_device_tensor(argument)]
    made = list(arguments)
    if places:
        with torch.enable_grad():
            copies = _Barrier.apply(*(arguments[i] for i in places))
        for i, copy in zip(places, copies, strict=True):
            made[i] = copy
    return made


def register() -> None:
    """Put the barrier where torch's two kinds of checkpoint start to recompute."""
    detach, inputs = checkpoint.detach_variable, checkpoint._CheckpointFrame.get_inputs

    def detach_variable(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return detach(tuple(_behind_barrier(arguments)))

    def get_inputs(self: Any) -> list[Any]:
        return _behind_barrier(inputs(self))

    checkpoint.detach_variable = detach_variable  # type: ignore[assignment]
    checkpoint._CheckpointFrame.get_inputs = get_inputs  # type: ignore[method-assign]
