"""Compiles functions for the device, counts what they cost, and compares them with the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import trcomp.runtime as rt

DEVICE = "xla"
Function = Callable[..., Any]


def compiled(function: Function, **options: Any) -> Function:
    made: Function = torch.compile(function, backend="trcomp", **options)
    return made


class Counted:
    """What was recorded, compiled and run within a `with`."""

    def __enter__(self) -> Counted:
        self._before = rt.metrics()
        return self

    def __exit__(self, *raised: Any) -> None:
        after = rt.metrics()
        for name in ("recorded_nodes", "compiles", "executions", "early_syncs"):
            setattr(self, name, after[name] - self._before[name])

    recorded_nodes: int
    compiles: int
    executions: int
    early_syncs: int


def assert_agrees(function: Function, *arguments: torch.Tensor, calls: int = 2) -> None:
    """The function does on the device, compiled, what it does on the CPU.

    Results, gradients and what becomes of its arguments are compared.
    """
    on_device = [a.detach().to(DEVICE).requires_grad_(a.requires_grad) for a in arguments]
    run = compiled(function)
    for _ in range(calls):
        expected, got = function(*arguments), run(*on_device)
        torch.testing.assert_close(on_host(got), on_host(expected))
        if any(a.requires_grad for a in arguments):
            total(expected).backward()
            total(got).backward()
            for argument, other in zip(arguments, on_device, strict=True):
                torch.testing.assert_close(on_host(other.grad), argument.grad)
        torch.testing.assert_close(on_host(on_device), list(arguments))
        rt.sync()


def on_host(made: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.detach().cpu(), made)


def total(made: Any) -> torch.Tensor:
    tensors = [t for t in torch.utils._pytree.tree_leaves(made) if t.requires_grad]
    return sum((t.square().sum() for t in tensors), torch.zeros(()).to(tensors[0].device))


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
