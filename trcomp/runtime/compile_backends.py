"""Names of `torch.compile`'s backend: `trcomp`, and what torch has, or had, for torch_xla.

Entry points make `trcomp` known. torch itself has a module for the names of torch_xla, which it
imports when a backend is first asked for by name; this one stands in for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from trcomp import flags

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
    """Let torch's names for torch_xla mean this backend, unless a torch_xla is installed."""
    if _TORCHS_MODULE not in sys.modules:
        sys.meta_path.insert(0, _StandIn())
    elif PathFinder.find_spec("torch_xla") is None:
        from torch._dynamo.backends import registry

        registry._COMPILER_FNS.update(dict.fromkeys(_TORCHS_NAMES, trcomp))
