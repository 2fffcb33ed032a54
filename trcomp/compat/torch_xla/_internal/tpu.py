"""What libraries ask `torch_xla._internal.tpu` to find out whether there are XLA devices."""

from __future__ import annotations

from .. import runtime
from .._missing import missing

__getattr__ = missing(__name__)


def num_available_devices() -> int:
    """Devices of this host, whatever their kind: Lightning runs on XLA where there are some."""
    return runtime.local_device_count()


num_available_chips = num_available_devices


def num_local_processes() -> int:
    """Processes on this host: one per device."""
    return runtime.local_process_count()


def version() -> int:
    """0: of no TPU generation."""
    return 0


def get_tpu_env() -> dict[str, str]:
    """What a TPU machine's environment says of it; the type is known to no table of TPUs."""
    return {"TYPE": runtime.device_type()}
