"""Makes `xla` a device of this process: stock PyTorch's PrivateUse1, renamed, with a device module.

Pure Python on `torch._C._acc`, which PyTorch has since 2.10.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils import backend_registration

from trcomp.errors import DeviceError, ForkedProcessError
from trcomp.runtime import rng, unwinding

NAME = "xla"


class Process:
    """What this process knows about its own life: does JAX run here, was it forked."""

    started = False
    """JAX has a live client: its threads do not survive a fork."""
    forked = False
    """This process is a fork of one whose client had started."""


def _after_fork_in_child() -> None:
    if Process.started:
        Process.forked = True


def check_fork() -> None:
    """Refuse to touch the device in a forked child.

    Raises:
        ForkedProcessError: This process was forked from one that uses the device.
    """
    if Process.forked:
        raise ForkedProcessError(
            "The xla device was used in a forked process (such as a DataLoader worker). "
            "The XLA client of the parent does not survive a fork.",
            "Keep tensors on the CPU in datasets and collate functions, or start the workers with "
            "multiprocessing_context='spawn'.",
        )


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
        from trcomp.runtime.sync import sync

        sync(wait=True)

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        """Dtypes that `torch.autocast("xla")` accepts."""
        return [torch.bfloat16, torch.float16]


def check_index(device: torch.device) -> torch.device:
    """`device` with its index filled in.

    Raises:
        DeviceError: It is not this process's device.
    """
    if device.type != NAME or device.index not in (None, 0):
        raise DeviceError(
            f"got device {str(device)!r}; this process drives xla:0 alone.",
            "Use trcomp.runtime.device(); with several devices each rank has its own process.",
        )
    return DEVICE


def _register() -> torch.device:
    backend_registration.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, XlaModule())
    torch._C._acc.register_python_privateuseone_hook(backend_registration._DummyPrivateUse1Hook())
    torch._C._acc.register_python_privateuseone_device_guard(unwinding.DeviceGuard())
    unwinding.register()
    # The native property asks for torch's own XLA dispatch key, which is another one.
    setattr(torch.Tensor, "is_xla", property(lambda tensor: tensor.device.type == NAME))  # noqa: B010
    # The client copies from any host memory, so there is nothing to pin; torch's own would ask the
    # device for an allocator.
    setattr(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor)  # noqa: B010
    # Backward runs on the calling thread: recording is not thread-safe, and the engine's device
    # thread costs 17 us a call.
    torch.autograd.set_multithreading_enabled(False)
    os.register_at_fork(after_in_child=_after_fork_in_child)
    return torch.device(NAME, 0)


DEVICE = _register()
