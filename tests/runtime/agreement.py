"""Calls one function on the CPU and on the device and compares what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from trcomp.runtime.device import DEVICE
from trcomp.runtime.metrics import counters

Tolerances = Mapping[torch.dtype, tuple[float, float]]

TOLERANCES: Tolerances = {
    torch.float64: (1e-9, 1e-9),
    torch.float32: (1e-4, 1e-5),
    torch.bfloat16: (2e-2, 1e-2),
    torch.float16: (3e-3, 3e-3),
    torch.complex64: (1e-4, 1e-5),
}
"""(rtol, atol) by dtype, not by operator; other dtypes must be equal."""


def on_device(argument: Any) -> Any:
    """A copy of a CPU tensor on the device; anything else as it is."""
    if isinstance(argument, torch.Tensor):
        return argument.detach().to(DEVICE).requires_grad_(argument.requires_grad)
    return argument


def leaves(result: Any) -> list[Any]:
    """What a result is made of, tensors and numbers."""
    return tree_flatten(result)[0]


def assert_alike(actual: Any, expected: Any, tolerances: Tolerances = TOLERANCES) -> None:
    """Tensors agree in dtype, size and elements, within what the dtype can hold."""
    got, due = leaves(actual), leaves(expected)
    assert len(got) == len(due)
    for left, right in zip(got, due, strict=True):
        if not isinstance(right, torch.Tensor):
            assert left == right
            continue
        assert (left.dtype, left.size()) == (right.dtype, right.size())
        rtol, atol = tolerances.get(right.dtype, (0.0, 0.0))
        torch.testing.assert_close(
            left.detach().cpu(), right.detach(), rtol=rtol, atol=atol, equal_nan=True
        )


def assert_agrees(function: Callable[..., Any], *arguments: Any, falls_back: bool = False) -> None:
    """A function gives the same on both sides, and on the device without the CPU's help.

    Args:
        function: Called with CPU tensors, then with their copies on the device.
        arguments: Tensors, lists of them, numbers; those that require gradients are compared by
            their gradients too.
        falls_back: Whether the device may compute it on the CPU.
    """
    before = counters.fallbacks.total()
    moved = tree_map(on_device, arguments)
    results = [_with_gradients(function, given) for given in (arguments, moved)]
    assert_alike(results[1], results[0])
    if not falls_back:
        assert counters.fallbacks.total() == before, dict(counters.fallbacks)


def _with_gradients(function: Callable[..., Any], arguments: Any) -> Any:
    wanted = [a for a in leaves(arguments) if isinstance(a, torch.Tensor) and a.requires_grad]
    result = function(*arguments)
    if not wanted:
        return result
    total = sum((weighted(r) for r in leaves(result) if r.requires_grad), torch.zeros(()))
    return result, torch.autograd.grad(total, wanted)


def weighted(result: torch.Tensor) -> torch.Tensor:
    """A sum with another weight for each element, so that no gradient cancels."""
    weights = torch.arange(result.numel(), dtype=torch.float32).add_(1).div_(result.numel() or 1)
    return (result.float() * weights.reshape(result.size()).to(result.device)).sum()
