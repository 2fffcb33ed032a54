"""`module.to(...)`: parameters stay the same objects, also across devices.

torch's swapping conversion keeps tied weights tied, and an optimizer made before `.to("xla")` goes
on training the same parameters. It refuses parameters that a living graph still holds. torch's
ordinary conversion, by `.data`, does not mind those, so that one steps in wherever it can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedParameter

from trcomp.errors import DeviceError
from trcomp.runtime.device import is_on_device

_swap = torch.utils.swap_tensors
_waiting: Any = UninitializedParameter


def _swap_or_set(old: torch.Tensor, new: torch.Tensor) -> None:
    """Make `old` hold what `new` holds.

    Raises:
        DeviceError: `old` is held by a living graph, and `new` is on another kind of device.
    """
    try:
        _swap(old, new)
    except RuntimeError as error:
        if torch._has_compatible_shallow_copy_type(old, new):
            old.data = new.data
            return
        if not is_on_device(old) and not is_on_device(new):
            raise
        raise DeviceError(
            f"a parameter cannot move from {old.device} to {new.device} while something holds it: "
            f"{error}",
            "Move the module before its first forward pass, or delete earlier outputs and losses.",
        ) from error


def _apply_to_lazy(
    self: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> torch.nn.Module:
    """`Module._apply` of a lazy module: parameters that have no shape yet can't be swapped."""
    parameters: dict[str, Any] = self._parameters
    waiting = {n: p for n, p in parameters.items() if isinstance(p, UninitializedParameter)}
    parameters.update(dict.fromkeys(waiting))
    torch.nn.Module._apply(self, fn, recurse)
    for name, old in waiting.items():
        with torch.no_grad():
            new = fn(old)
        if torch._has_compatible_shallow_copy_type(old, new):
            old.data = new
            parameters[name] = old
        else:
            parameters[name] = _waiting(old.requires_grad, new.device, new.dtype)
    return self


def register() -> None:
    """Convert modules by swapping; have them call operators that are lowered."""
    # The encoder layer's fused form, in evaluation, is one operator of torch's own kernels.
    torch.backends.mha.set_fastpath_enabled(False)
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch.utils.swap_tensors = _swap_or_set
    setattr(LazyModuleMixin, "_apply", _apply_to_lazy)  # noqa: B010 - the mixin has none
