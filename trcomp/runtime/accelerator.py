"""`torch.accelerator` on the device: the functions of torch's C++ that Python devices lack.

torch has no hook for them; some of its own end in a failed assertion, one in a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trcomp.runtime import device_memory, streams
from trcomp.runtime.dtypes import TO_JAX
from trcomp.runtime.sync import sync

_MEMORY = ("allocated_bytes", "active_bytes", "requested_bytes")


def _stats(device_index: int) -> dict[str, Any]:
    now = device_memory.account()
    taken = {"current": now.taken, "peak": now.peak}
    reserved = {"current": now.reserved, "peak": max(now.reserved, now.peak)}
    counted = {name: {"all": taken} for name in _MEMORY}
    return {**counted, "reserved_bytes": {"all": reserved}}


def _functions() -> dict[str, Callable[..., Any]]:
    return {
        "emptyCache": lambda: None,
        "emptyHostCache": lambda: None,
        "getDeviceCapability": lambda device_index: {"supported_dtypes": set(TO_JAX)},
        "getDeviceStats": _stats,
        "getMemoryInfo": lambda device_index: device_memory.free_and_total(),
        "getStream": streams.current_stream,
        "isAllocatorInitialized": lambda: True,
        "resetAccumulatedStats": lambda device_index: None,
        "resetPeakStats": lambda device_index: device_memory.reset_peak(),
        "setStream": streams.set_stream,
        "synchronizeDevice": lambda device_index: sync(wait=True),
    }


def register() -> None:
    """Put them in the place of torch's, which serve no other device in this process."""
    for name, function in _functions().items():
        setattr(torch._C, f"_accelerator_{name}", function)
