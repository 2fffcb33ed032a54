"""Plugins of devices: JAX brings its own for CPUs and GPUs, so there is none to load."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from typing import Any

from trcomp.errors import UnsupportedError

from .. import runtime
from .._missing import missing
from ..utils import utils as xu

__getattr__ = missing(__name__)

_CHOSEN = "PJRT_DYNAMIC_PLUGINS"
_KNOWN = ("CPU", "CUDA", "GPU")
_registered: dict[str, DevicePlugin] = {}


class DevicePlugin:
    """What a script or package tells of a device; a CPU's or a GPU's is accepted and not asked."""

    def library_path(self) -> str:
        """Where the library lies that drives the device."""
        raise NotImplementedError

    def host_index(self) -> int:
        """This host among the job's."""
        return runtime.host_index()

    def configure_single_process(self) -> None:
        """Nothing to do: one process drives one device."""

    def configure_multiprocess(self, local_rank: int, local_world_size: int) -> None:
        """Nothing to do: each rank has its device before the script starts."""

    def physical_chip_count(self) -> int:
        """Devices of this host."""
        return runtime.local_device_count()

    def client_create_options(self) -> dict[str, Any]:
        """What the library is started with."""
        return {}

    def requires_xla_coordinator(self) -> bool:
        """Whether the ranks meet before their devices start."""
        return True


def use_dynamic_plugins() -> None:
    """Nothing to choose: devices come by JAX's plugins."""
    os.environ[_CHOSEN] = "1"


def using_dynamic_plugins() -> bool:
    """Whether the script chose them."""
    return bool(xu.getenv_as(_CHOSEN, bool, False))


def default() -> DevicePlugin:
    """What was registered for this process's kind of device."""
    return _registered.get(runtime.device_type(), DevicePlugin())


def register_plugin(name: str, device_plugin: DevicePlugin) -> None:
    """Accept the plugin of a CPU or a GPU, which JAX drives by its own.

    Raises:
        UnsupportedError: Of another device.
    """
    if name.upper() not in _KNOWN:
        raise UnsupportedError(
            f"plugins.register_plugin({name!r}, …) was called: trcomp's devices are {_KNOWN}.",
            "Install the device's plugin for JAX, or leave the call out.",
        )
    _registered[name.upper()] = device_plugin


def register_installed_plugins() -> None:
    """Register what installed packages bring for torch_xla."""
    for found in entry_points(group="torch_xla.plugins"):
        register_plugin(found.name, found.load()())
