"""Tensors inside nested data: converted all at once, or checked for shared memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trcomp.runtime.batches import map_tensors

Tensors = list[torch.Tensor]


class ToXlaTensorArena:
    """Converts the chosen tensors of nested data by one call.

    Args:
        convert_fn: Takes the tensors in order; returns as many others.
        select_fn: Whether a tensor is one of them.
    """

    def __init__(
        self, convert_fn: Callable[[Tensors], Tensors], select_fn: Callable[[torch.Tensor], bool]
    ) -> None:
        self._convert_fn = convert_fn
        self._select_fn = select_fn

    def transform(self, inputs: Any) -> Any:
        """Data of the same structure and types, the chosen tensors converted."""
        chosen: Tensors = []

        def collect(tensor: torch.Tensor) -> torch.Tensor:
            if self._select_fn(tensor):
                chosen.append(tensor)
            return tensor

        map_tensors(inputs, collect)
        converted = iter(self._convert_fn(chosen) if chosen else ())
        return map_tensors(inputs, lambda t: next(converted) if self._select_fn(t) else t)


def check_view_sharing(obj: Any) -> None:
    """Refuse nested data in which two different tensors share memory.

    Raises:
        RuntimeError: Names both tensors.
    """
    owners: dict[int, torch.Tensor] = {}

    def check(tensor: torch.Tensor) -> torch.Tensor:
        owner = owners.setdefault(tensor.untyped_storage()._cdata, tensor)
        if owner is not tensor:
            raise RuntimeError(
                f"A tensor {tensor.dtype}{list(tensor.size())} shares its memory with another one, "
                f"{owner.dtype}{list(owner.size())}: one is a view of the other."
            )
        return tensor

    map_tensors(obj, check)
