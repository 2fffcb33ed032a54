"""Names of `torch.compile`'s backend: `trcomp`, no name, what torch has, or had, for torch_xla.

Entry points make `trcomp` known. torch itself has a module for the names of torch_xla, which it
imports when a backend is first asked for by name; this one stands in for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from trcomp import flags
from trcomp.changes import when_imported
from trcomp.runtime.device import NAME, is_on_device

_TORCHS_MODULE = "torch._dynamo.backends.torchxla"
_TORCHS_NAMES = ("openxla", "openxla_eval")


def trcomp(module: Any, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The backend of `torch.compile(model, backend="trcomp")`.

    Without XLA the traced code runs as torch runs it. Modes and options are those of other
    backends; they change nothing here.
    """
    if not flags.ENABLED.get():
        function: Callable[..., Any] = module.forward
        return function
    from trcomp.runtime.dynamo import compile_differentiable

    return compile_differentiable(module, inputs)


def _register_default() -> None:
    """Let `torch.compile` without a backend mean `trcomp` for what is on the device.

    What is traced on the CPU alone goes to torch's own compiler, as it would without this.
    """
    default: Any = torch._TorchCompileInductorWrapper
    inductor = default.__call__

    @wraps(inductor)
    def by_device(self: Any, module: Any, inputs: Sequence[Any], **options: Any) -> Any:
        if any(map(_is_on_device, _traced_tensors(module, inputs))):
            return trcomp(module, inputs)
        return inductor(self, module, inputs, **options)

    default.__call__ = by_device


def _traced_tensors(module: Any, inputs: Sequence[Any]) -> Iterator[torch.Tensor]:
    """What goes into a graph that dynamo traced, and what is made within."""
    made = (node.meta.get("example_value") for node in module.graph.nodes)
    for value in (*inputs, *tree_leaves(list(made))):
        if isinstance(value, torch.Tensor):
            yield value


def _is_on_device(tensor: torch.Tensor) -> bool:
    """Also for one that stands in for another, which says itself where it is."""
    return is_on_device(tensor) or tensor.device.type == NAME


def _skip_kernels(trace_rules: Any) -> None:
    """Where traced code breaks off, dynamo would go on to trace the device's own kernels."""
    for name in ("trcomp", "jax", "jaxlib", "ml_dtypes"):
        trace_rules.add(name)


class _StandIn(MetaPathFinder, Loader):
    """Loads torch's module of torch_xla's backends as one that registers `trcomp`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of that module, unless a torch_xla is installed; None for all others."""
        if fullname != _TORCHS_MODULE or PathFinder.find_spec("torch_xla") is not None:
            return None
        return ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        """Give the names to `trcomp`."""
        from torch._dynamo.backends.registry import register_backend

        for name in _TORCHS_NAMES:
            setattr(module, name, register_backend(trcomp, name))


def register() -> None:
    """Be what no name means, and those of torch_xla, unless it is installed."""
    _register_default()
    when_imported({"torch._dynamo.trace_rules": _skip_kernels})
    if _TORCHS_MODULE not in sys.modules:
        sys.meta_path.insert(0, _StandIn())
    elif PathFinder.find_spec("torch_xla") is None:
        from torch._dynamo.backends import registry

        registry._COMPILER_FNS.update(dict.fromkeys(_TORCHS_NAMES, trcomp))
