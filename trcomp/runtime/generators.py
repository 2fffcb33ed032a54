"""`torch.Generator(device="xla")`: a host generator whose numbers are the keys of device draws.

torch lets no device written in Python make generators. Any draw on the device takes a CPU generator
(`ops.random`), so the one made here is a CPU generator that names the device as its own. Every
other generator is what it was, and is an instance of `torch.Generator` as before.
"""

from __future__ import annotations

from typing import Any

import torch

from trcomp.runtime.device import DEVICE, check_index

_Base = torch._C.Generator


class _AnyGenerator(type(_Base)):  # type: ignore[misc]
    """Counts every generator as an instance, those that torch made for itself too."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _Base)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _Base)


class XlaGenerator(_Base):
    """A stream of keys for draws on the device. Its state is a CPU generator's, on the host."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device whose draws it decides."""
        return DEVICE


class Generator(_Base, metaclass=_AnyGenerator):
    """`torch.Generator`, for every device that torch makes one for, and for `xla`."""

    def __new__(cls, device: Any = "cpu") -> Any:
        wanted = torch.device(device)
        if wanted.type != DEVICE.type:
            return _Base(device)
        check_index(wanted)
        return XlaGenerator("cpu")


def register() -> None:
    """Let `torch.Generator` make generators for the device."""
    torch.Generator = Generator  # type: ignore[misc]
