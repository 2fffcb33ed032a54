"""Models compiled without a word of the script's, as they are moved to the device."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from trcomp import flags
from trcomp.runtime.device import is_on_device
from trcomp.runtime.metrics import counters


def register() -> None:
    """Compile each module that the script moves to the device, if TRCOMP_COMPILE_MODELS asks so."""
    if not flags.COMPILE_MODELS.get():
        return
    module: Any = torch.nn.Module
    for name in ("to", "cuda"):
        setattr(module, name, _then_compiled(getattr(module, name)))


def _then_compiled(move: Any) -> Any:
    @wraps(move)
    def moved(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        made: torch.nn.Module = move(self, *args, **kwargs)
        parameter = next(made.parameters(), None)
        if parameter is not None and is_on_device(parameter) and not _is_compiled(made):
            _compile(made)
            counters.compiled_models += 1
        return made

    return moved


def _compile(module: Any) -> None:
    """As `module.compile` does, which passes over modules of torch's own, such as Sequential."""
    from torch._dynamo.external_utils import wrap_inline

    call = wrap_inline(module._call_impl)
    module._compiled_call_impl = torch.compile(call, backend="trcomp")


def _is_compiled(module: torch.nn.Module) -> bool:
    """Whether it or what it wraps is compiled, by the script or by an earlier move."""
    return any(
        part._compiled_call_impl is not None or isinstance(part, torch._dynamo.OptimizedModule)
        for part in module.modules()
    )
