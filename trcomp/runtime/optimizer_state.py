"""An optimizer's state, made before its first step, which is then the same graph as later ones.

torch's optimizers make their state, such as Adam's moments, as zeros within the first step. There
it would be recorded as a part of that step's graph, where all later ones read buffers: a second
graph to compile. So it is made just before, and lies on the device as zeros do that were uploaded.
"""

from __future__ import annotations

import inspect
from typing import Any
from weakref import WeakSet

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trcomp.runtime import client
from trcomp.runtime.device import is_on_device
from trcomp.runtime.dtypes import TO_JAX
from trcomp.runtime.ir import ScalarSlot, Value, is_apart
from trcomp.runtime.storage import put, storage_order, value_of

_stepped: WeakSet[torch.optim.Optimizer] = WeakSet()


def register() -> None:
    """Have every optimizer's state made before its first step."""
    register_optimizer_step_pre_hook(_before_step)


def _before_step(
    optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    # Asked first: torch.compile follows this function too, and must find nothing else here.
    if torch.compiler.is_compiling() or is_apart() or optimizer in _stepped:
        return None
    _stepped.add(optimizer)
    # `_init_group` is how torch's own optimizers name it; another library's may mean anything.
    ours = type(optimizer).__module__.startswith("torch.optim.")
    if not ours or not hasattr(optimizer, "_init_group"):
        return None
    given = [*args[1:], *kwargs.values()]
    if not given or given[0] is None:
        _make(optimizer)
        return None

    def closure() -> Any:
        loss = given[0]()
        _make(optimizer)  # There were no gradients before, and what has none gets no state.
        return loss

    return (args[0], closure), {}


def _make(optimizer: Any) -> None:
    num_lists = len(inspect.signature(optimizer._init_group).parameters) - 1
    groups = [] if optimizer.state else optimizer.param_groups
    with torch.no_grad():
        for group in groups:
            on_device = any(is_on_device(parameter) for parameter in group["params"])
            if not on_device or group.get("differentiable"):
                continue
            if type(optimizer) is torch.optim.SGD:
                _make_momentum(optimizer, group)
            else:
                optimizer._init_group(group, *([] for _ in range(num_lists)))
    for state in optimizer.state.values():
        for made in state.values():
            # A subclass, such as DTensor, has no storage of its own.
            if type(made) is torch.Tensor and is_on_device(made):
                _compute(made)


def _make_momentum(optimizer: torch.optim.SGD, group: dict[str, Any]) -> None:
    """SGD takes the first gradient for its momentum: what it also gets if it starts from zeros."""
    if not group["momentum"] or group["dampening"]:
        return
    for parameter in group["params"]:
        if parameter.grad is not None:
            zeros = torch.zeros_like(parameter.grad, memory_format=torch.preserve_format)
            optimizer.state[parameter]["momentum_buffer"] = zeros


def _compute(tensor: torch.Tensor) -> None:
    """Turn a tensor that is pending, and all of one number, into one that is computed."""
    value = value_of(tensor)
    node = value.node
    if node is None or node.sources or node.signature.rule.name != "trcomp::full":
        return
    out, number = node.signature.outputs[0], node.signature.arguments[1]
    if type(number) is ScalarSlot:
        number = node.scalars[number.number]
    if out is None:
        return
    size = tuple(out.size[d] for d in storage_order(out.size, out.stride))
    array = client.filled(size, number, TO_JAX[out.dtype])
    put(tensor.untyped_storage(), Value.of_array(array))
