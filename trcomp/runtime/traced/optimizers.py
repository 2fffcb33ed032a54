"""Compiled optimizers on the device, as torch has them on CUDA: counters there, rates as inputs."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import fx
from torch._dynamo.variables.optimizer import OptimizerVariable
from torch._functorch._aot_autograd import graph_compile
from torch.fx.passes._tensorify_python_scalars import tensorify_python_scalars

from trcomp.runtime.device import is_on_device


@contextmanager
def floats_as_inputs() -> Iterator[None]:
    """Python floats that change from call to call stay floats in graphs that need no gradients.

    torch would make tensors of them, or give up where an operator takes numbers only and compile
    anew for each value: an optimizer's learning rate.
    """

    def unless_inference(module: fx.GraphModule, *rest: Any) -> None:
        names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
        if any(name.startswith("tangents") for name in names):
            tensorify_python_scalars(module, *rest)

    with patch.object(graph_compile, "tensorify_python_scalars", unless_inference):
        yield


def register() -> None:
    """Have an optimizer that is compiled before its first step keep its counters on the device.

    torch traces compiled optimizers as capturable, but makes them so on CUDA and XPU alone;
    elsewhere each step would count on the host.
    """
    with warnings.catch_warnings():
        # Tracing an optimizer loads this, which warns of itself: an error where warnings are.
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("torch.utils.mkldnn")
    set_capturable = OptimizerVariable._set_capturable

    def set_capturable_on_device(self: OptimizerVariable, tx: Any) -> None:
        for group in self.value.param_groups:
            if "capturable" in group and all(_is_fresh(self.value, p) for p in group["params"]):
                group["capturable"] = True
                _move_counters(self.value, group["params"])
        set_capturable(self, tx)

    setattr(OptimizerVariable, "_set_capturable", set_capturable_on_device)  # noqa: B010


def _is_fresh(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> bool:
    """Whether a parameter on the device has not been stepped yet, though it may have its state."""
    made = optimizer.state.get(parameter, {}).get("step", 0)
    known = not isinstance(made, torch.Tensor) or not is_on_device(made)
    return is_on_device(parameter) and known and not made


def _move_counters(optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor]) -> None:
    for parameter in parameters:
        state = optimizer.state.get(parameter, {})
        for name, made in state.items():
            if isinstance(made, torch.Tensor) and made.dim() == 0:
                state[name] = made.to(parameter.device)
