"""`torch.autocast("cuda")`: the device's own autocast, with CUDA's lists and dtypes."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch.amp import autocast_mode

from trcomp.compat.cuda.names import CUDA
from trcomp.runtime.device import NAME

_NAMED = ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype")
_OLD = {
    "get_autocast_gpu_dtype": lambda: torch.get_autocast_dtype(NAME),
    "set_autocast_gpu_dtype": lambda dtype: torch.set_autocast_dtype(NAME, dtype),
}


def _for_device(function: Any) -> Any:
    """A function of torch's autocast whose device, CUDA by name or by default, is this one."""

    @wraps(function)
    def answered(*args: Any) -> Any:
        if not args or not isinstance(args[0], str):
            return function(NAME, *args)
        return function(NAME if args[0] == CUDA else args[0], *args[1:])

    return answered


def register() -> None:
    """Answer for CUDA's autocast."""
    for name in _NAMED:
        setattr(torch, name, _for_device(getattr(torch, name)))
    for name, function in _OLD.items():
        setattr(torch, name, function)
    region: Any = autocast_mode.autocast
    make = region.__init__

    @wraps(make)
    def init(
        self: Any,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if device_type == CUDA:
            # CUDA takes float32 without a word: it casts nothing then.
            device_type, enabled = NAME, enabled and dtype is not torch.float32
        make(self, device_type, dtype, enabled, cache_enabled)

    region.__init__ = init
