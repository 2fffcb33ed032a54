"""`torch.autocast("cuda")`: the device's own autocast, with CUDA's lists and dtypes."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch.amp import autocast_mode

from trcomp.compat.cuda.names import CUDA
from trcomp.runtime.device import NAME

_NAMED = ("is_autocast_enabled", "set_autocast_enabled", "set_autocast_dtype")
_OLD = {
    "get_autocast_gpu_dtype": lambda: torch.get_autocast_dtype(CUDA),
    "set_autocast_gpu_dtype": lambda dtype: torch.set_autocast_dtype(CUDA, dtype),
}
_get_dtype = torch.get_autocast_dtype


class _Default:
    """The dtype of CUDA's regions that name none; the device's own are bfloat16."""

    dtype = torch.float16


def _dtype(device_type: str) -> torch.dtype:
    """A region's dtype: of the one that this is in, else what CUDA's begin with."""
    if device_type != CUDA:
        return _get_dtype(device_type)
    return _get_dtype(NAME) if torch.is_autocast_enabled(NAME) else _Default.dtype


def _for_device(function: Any) -> Any:
    """A function of torch's autocast whose device, CUDA by name or by default, is this one."""

    @wraps(function)
    def answered(*args: Any) -> Any:
        if not args or not isinstance(args[0], str):
            return function(NAME, *args)
        if function.__name__ == "set_autocast_dtype" and args[0] == CUDA:
            _Default.dtype = args[1]
        return function(NAME if args[0] == CUDA else args[0], *args[1:])

    return answered


def register() -> None:
    """Answer for CUDA's autocast."""
    for name in _NAMED:
        setattr(torch, name, _for_device(getattr(torch, name)))
    setattr(torch, "get_autocast_dtype", _dtype)  # noqa: B010
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
            dtype = dtype or _dtype(CUDA)
        make(self, device_type, dtype, enabled, cache_enabled)

    region.__init__ = init
