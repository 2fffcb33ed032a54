"""Operators without a lowering: torch's own decomposition, else the CPU, counted."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from trcomp.runtime import interruptions
from trcomp.runtime.device import DEVICE, NAME, is_on_device
from trcomp.runtime.dispatch import KEY, implement
from trcomp.runtime.metrics import counters
from trcomp.runtime.ops.registry import find
from trcomp.runtime.transfer import to_device, to_host

_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
library = torch.library.Library("_", "IMPL")


def fallback(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Run an operator for which the device has no kernel."""
    if _is_view(op):
        return op.redispatch(_CPU, *args, **kwargs)
    decomposition = _decomposition(op)
    if decomposition is not None:
        return decomposition(*args, **kwargs)
    return run_on_cpu(op, *args, **kwargs)


def _is_view(op: OpOverload) -> bool:
    """Whether the operator returns an alias of an argument and writes nothing."""
    returns = op._schema.returns
    return (
        not op._schema.is_mutable
        and bool(returns)
        and all(r.alias_info is not None for r in returns)
    )


def _decomposition(op: OpOverload) -> Any:
    from torch._decomp import core_aten_decompositions

    global _table
    if _table is None:
        _table = dict(core_aten_decompositions())
    return _table.get(op)


_table: dict[Any, Any] | None = None


def run_on_cpu(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Compute an operator with torch on the CPU: a sync and copies; counted, named once."""
    name = op._schema.name.removeprefix("aten::")
    if op._overloadname != "default":
        name += f".{op._overloadname}"
    if not counters.fallbacks[name]:
        print(
            f"trcomp: {name} has no lowering; torch runs it on the CPU (named once, counted in the "
            "metrics)",
            file=sys.stderr,
        )
    counters.fallbacks[name] += 1
    with interruptions.noted(interruptions.OPERATOR, name):
        return _on_host(op, args, kwargs)


def _on_host(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def down(argument: Any) -> Any:
        if isinstance(argument, torch.Tensor) and is_on_device(argument):
            if id(argument) not in copies:
                copies[id(argument)] = (argument, to_host(argument))
            return copies[id(argument)][1]
        if isinstance(argument, torch.device) and argument.type == NAME:
            return torch.device("cpu")
        return argument

    hosts = tree_map(down, kwargs)
    for argument in op._schema.arguments:
        if argument.is_out:
            # torch may resize what it owns, not what numpy lent it.
            device, host = copies[id(kwargs[argument.name])]
            hosts[argument.name] = host.clone()
            copies[id(device)] = (device, hosts[argument.name])
    result = op(*tree_map(down, args), **hosts)
    originals = {id(host): device for device, host in copies.values()}
    if op._schema.is_mutable:
        _write_back(op, args, kwargs, copies)

    def up(made: Any) -> Any:
        if not isinstance(made, torch.Tensor) or made.device.type != "cpu":
            return made
        return originals[id(made)] if id(made) in originals else to_device(made, DEVICE)

    return tree_map(up, result)


def _write_back(
    op: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    copies: dict[int, tuple[torch.Tensor, torch.Tensor]],
) -> None:
    for i, argument in enumerate(op._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = args[i] if i < len(args) else kwargs.get(argument.name)
        for tensor in given if isinstance(given, (list, tuple)) else (given,):
            if isinstance(tensor, torch.Tensor) and id(tensor) in copies:
                host = copies[id(tensor)][1]
                if tensor.size() != host.size():
                    tensor.resize_(host.size())
                tensor.copy_(host)


def register() -> None:
    """Make `fallback` the device's kernel of every operator that has none.

    A structured operator has one of torch's making: it allocates a result and calls the `out=`
    form. Those that no rule covers are registered by name, so that they arrive as what was called.
    """
    library.fallback(fallback, KEY)
    made_by_torch = "CompositeExplicitAutogradNonFunctional"
    for full in torch._C._dispatch_get_all_op_names():
        if not full.startswith("aten::"):
            continue
        if torch._C._dispatch_has_kernel_for_dispatch_key(full, made_by_torch):
            op = find(full.removeprefix("aten::"))
            implement(op, partial(fallback, op))
