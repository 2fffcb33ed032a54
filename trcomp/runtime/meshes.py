"""Meshes of "xla" are meshes of processes, and DTensor knows the derivative of `linear`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from trcomp.changes import when_imported
from trcomp.runtime.device import NAME, Process

_SPARE = "privateuseone"
"""torch's own name for the type of device that this one is."""


class _RanksDevice:
    """`torch.xla`, as a mesh asks it: a rank has its device, and no mesh chooses another."""

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(torch, NAME), name)

    def is_initialized(self) -> bool:
        """True: nothing is to be set."""
        return True


def _register_names() -> None:
    """Make a mesh of "xla" under a name that torch has not given away.

    torch takes "xla" for one program over all devices (SPMD), and makes no process groups for it.
    The device is also torch's "privateuseone", or "cuda" where the script sees it as that.
    """
    initialize: Any = DeviceMesh.__init__

    @wraps(initialize)
    def of_processes(self: DeviceMesh, device_type: str, *args: Any, **kwargs: Any) -> None:
        if device_type == NAME:
            device_type = _SPARE if Process.shown is None else Process.shown.type
        initialize(self, device_type, *args, **kwargs)

    setattr(DeviceMesh, "__init__", of_processes)  # noqa: B010
    setattr(torch, _SPARE, _RanksDevice())


def _derive_linear(api: Any) -> None:
    """torch derives `linear` as a whole for some devices, and has no sharding of that."""
    handlers = api.DTensor._op_dispatcher._custom_op_handlers
    handlers[torch.ops.aten.linear_backward.default] = _linear_backward


def _linear_backward(op: Any, args: Sequence[Any], kwargs: Any) -> tuple[Any, ...]:
    """From products of matrices: (..., in), (..., out), (out, in) give up to three gradients."""
    inputs, gradient, weight, (of_inputs, of_weight, of_bias) = args
    rows = gradient.flatten(0, -2)
    return (
        gradient @ weight if of_inputs else None,
        rows.t() @ inputs.flatten(0, -2) if of_weight else None,
        rows.sum(0) if of_bias else None,
    )


def register() -> None:
    """Change `DeviceMesh`, and DTensor when it is imported."""
    _register_names()
    when_imported({"torch.distributed.tensor._api": _derive_linear})
