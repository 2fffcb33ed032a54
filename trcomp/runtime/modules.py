"""`module.to(...)`: parameters stay the same objects, also across devices.

torch's swapping conversion keeps tied weights tied, and an optimizer made before `.to("xla")` goes
on training the same parameters. It refuses parameters that a living graph still holds. torch's
ordinary conversion, by `.data`, does not mind those, so that one steps in wherever it can.
"""

from __future__ import annotations

import torch

from trcomp.errors import DeviceError
from trcomp.runtime.device import NAME

_swap = torch.utils.swap_tensors


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
        if NAME not in (old.device.type, new.device.type):
            raise
        raise DeviceError(
            f"a parameter cannot move from {old.device} to {new.device} while something holds it: "
            f"{error}",
            "Move the module before its first forward pass, or delete earlier outputs and losses.",
        ) from error


def register() -> None:
    """Convert modules by swapping."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch.utils.swap_tensors = _swap_or_set
