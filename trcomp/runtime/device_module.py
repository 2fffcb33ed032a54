"""`torch.xla`: the device module, asked for counts, random states, memory, streams and waits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch.utils import backend_registration

from trcomp.runtime import client, device_memory, rng, streams
from trcomp.runtime.device import NAME, Process, check_index
from trcomp.runtime.sync import sync


class DeviceProperties(NamedTuple):
    """A device, in the words of `torch.cuda.get_device_properties`; memory in bytes."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int


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

    Stream = streams.Stream
    Event = streams.Event
    current_stream = staticmethod(streams.current_stream)
    default_stream = staticmethod(streams.current_stream)
    set_stream = staticmethod(streams.set_stream)
    stream = staticmethod(streams.stream)

    @staticmethod
    def memory_allocated(device: Any = None) -> int:
        """Bytes held by arrays and by what runs."""
        return device_memory.account().taken

    @staticmethod
    def max_memory_allocated(device: Any = None) -> int:
        """The highest of `memory_allocated`; on the CPU, of the times when it was asked for."""
        return device_memory.account().peak

    @staticmethod
    def memory_reserved(device: Any = None) -> int:
        """Bytes that the XLA client has taken of the device, used or not."""
        return device_memory.account().reserved

    max_memory_reserved = memory_reserved

    @staticmethod
    def memory_stats(device: Any = None) -> dict[str, Any]:
        """The same by the names of `torch.cuda.memory_stats`."""
        return torch.accelerator.memory_stats(device)

    @staticmethod
    def mem_get_info(device: Any = None) -> tuple[int, int]:
        """Bytes that are free, and bytes that there are."""
        return device_memory.free_and_total()

    @staticmethod
    def reset_peak_memory_stats(device: Any = None) -> None:
        """Start `max_memory_allocated` again from what is allocated now."""
        device_memory.reset_peak()

    @staticmethod
    def empty_cache() -> None:
        """Nothing: XLA's memory is its own until the process ends."""

    @staticmethod
    def get_device_name(device: Any = None) -> str:
        """The device's kind in XLA's words, such as `NVIDIA H200` or `cpu`."""
        return XlaModule.get_device_properties(device).name

    @staticmethod
    def get_device_capability(device: Any = None) -> tuple[int, int]:
        """A GPU's compute capability; (0, 0) for the CPU."""
        properties = XlaModule.get_device_properties(device)
        return properties.major, properties.minor

    @staticmethod
    def get_device_properties(device: Any = None) -> DeviceProperties:
        """What XLA says of the device."""
        XlaModule.set_device(0 if device is None else device)
        xla = client.device()
        major, _, minor = str(getattr(xla, "compute_capability", "0.0")).partition(".")
        units = getattr(xla, "core_count", None) or os.cpu_count() or 1
        total = device_memory.account().limit
        return DeviceProperties(xla.device_kind, int(major), int(minor or 0), total, units)

    @staticmethod
    def is_bf16_supported(including_emulation: bool = True) -> bool:
        """True: XLA computes in bfloat16 on every device."""
        return True

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        """Dtypes that `torch.autocast("xla")` accepts."""
        return [torch.bfloat16, torch.float16]


def register() -> None:
    """Make it `torch.xla`."""
    torch._register_device_module(NAME, XlaModule())
