"""`gradient_accumulation`: micro-batches one after another, in one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .._missing import missing
from .._refused import internal

__getattr__ = missing(__name__)

_HERE = "torch_xla.experimental.gradient_accumulation"
GradientAccumulationContext = internal(f"{_HERE}.GradientAccumulationContext")
XlaBuildHelper = internal(f"{_HERE}.XlaBuildHelper")


def gradient_accumulation(
    train_step: Callable[..., Any],
    iterable_tensors: tuple[torch.Tensor, ...],
    model: torch.nn.Module,
    *carried_tensors: torch.Tensor,
) -> Any:
    """Sum the gradients of several micro-batches, each loss divided by their number.

    The micro-batches are recorded one after another: the graph grows with their number.

    Args:
        train_step: Takes a micro-batch of each of `iterable_tensors` and the carried tensors; gives
            the loss, or the loss and the next carried tensors.
        iterable_tensors: Tensors of shape (micro-batches, ...).
        model: Whose parameters get the gradients.
        carried_tensors: Handed from one micro-batch to the next.

    Returns:
        The mean loss, and the carried tensors if there are any.

    Raises:
        ValueError: There is no tensor to iterate over, or they differ in length, or one is empty.
    """
    count = _length(iterable_tensors)
    total: Any = 0
    carried: tuple[torch.Tensor, ...] = carried_tensors
    for index in range(count):
        result = train_step(*(tensor[index] for tensor in iterable_tensors), *carried)
        loss, *after = result if carried_tensors else (result,)
        carried = tuple(after)
        loss = loss / count
        loss.backward()
        total = total + loss.detach()
    return (total, *carried) if carried_tensors else total


def _length(tensors: tuple[torch.Tensor, ...]) -> int:
    if not tensors:
        raise ValueError("got no iterable_tensors; at least one is needed.")
    for i, tensor in enumerate(tensors):
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"Element {i} of iterable_tensors is not a tensor: {type(tensor)}.")
        if tensor.numel() == 0:
            raise ValueError(f"Element {i} of iterable_tensors is empty.")
        if tensor.size(0) != tensors[0].size(0):
            raise ValueError(
                f"Element {i} of iterable_tensors has inconsistent first dimension: "
                f"{tensor.size(0)}, and the first has {tensors[0].size(0)}."
            )
    return tensors[0].size(0)
