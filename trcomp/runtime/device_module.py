"""`torch.xla`: the device module, asked for counts, random states and waits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils import backend_registration

from trcomp.runtime import rng
from trcomp.runtime.device import NAME, Process, check_index
from trcomp.runtime.sync import sync


class XlaModule(backend_registration._DummyBackendModule):
    """`torch.xla`: what torch calls for a device module, in the words of `torch.cuda`."""

    _initialized = True
    """`torch.utils.checkpoint` keeps the random state of a device module that says so."""

    @staticmethod
    def is_available() -> bool:
        """True: in a process that asked for the runtime there is a device."""
        return True

    @staticmethod
    def is_initialized() -> bool:
        """Whether the XLA client has started."""
        return Process.started

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return Process.forked

    @staticmethod
    def device_count() -> int:
        """Devices this process drives: one; each rank has its own process."""
        return 1

    @staticmethod
    def current_device() -> int:
        """Index of this process's device, always 0."""
        return 0

    @staticmethod
    def set_device(device: Any) -> None:
        """Accept device 0.

        Raises:
            DeviceError: Another index was asked for.
        """
        check_index(torch.device(NAME, device) if isinstance(device, int) else torch.device(device))

    @staticmethod
    def device(index: Any) -> AbstractContextManager[None]:
        """`with torch.xla.device(0):`, which changes nothing: there is one device.

        Raises:
            DeviceError: Another index was asked for.
        """
        XlaModule.set_device(index)
        return nullcontext()

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        """Seed the device's random stream; `torch.manual_seed` calls this."""
        rng.manual_seed(seed)

    manual_seed = manual_seed_all

    @staticmethod
    def seed_all() -> None:
        """Seed the device's random stream with a number that the system draws."""
        rng.manual_seed(int.from_bytes(os.urandom(8), "little"))

    seed = seed_all

    @staticmethod
    def initial_seed() -> int:
        """The seed that the device's random stream started from."""
        return rng.initial_seed()

    @staticmethod
    def get_rng_state(device: Any = None) -> torch.Tensor:
        """The random stream's state as a byte tensor, shape (16,)."""
        return rng.get_state()

    @staticmethod
    def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
        """Go back to a state that `get_rng_state` returned."""
        rng.set_state(new_state)

    @staticmethod
    def get_rng_state_all() -> list[torch.Tensor]:
        """The random stream's state, one per device of this process."""
        return [rng.get_state()]

    @staticmethod
    def set_rng_state_all(new_states: Sequence[torch.Tensor]) -> None:
        """Go back to what `get_rng_state_all` returned."""
        (state,) = new_states
        rng.set_state(state)

    @staticmethod
    def synchronize(device: Any = None) -> None:
        """Compute all that is pending and wait for it."""
        sync(wait=True)

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        """Dtypes that `torch.autocast("xla")` accepts."""
        return [torch.bfloat16, torch.float16]


def register() -> None:
    """Make it `torch.xla`."""
    torch._register_device_module(NAME, XlaModule())
