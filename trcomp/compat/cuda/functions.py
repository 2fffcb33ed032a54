"""`torch.cuda`'s functions, answered by `torch.xla`'s for this process's device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch._utils import _get_device_index

from trcomp.compat.cuda import names
from trcomp.runtime import streams
from trcomp.runtime.device import Process
from trcomp.runtime.device_module import DeviceProperties, XlaModule

_STAND_IN_CAPABILITY = (8, 0)
"""What the CPU, standing in for a GPU, says of itself: bfloat16 and all that scripts ask for."""
_NCCL_VERSION = (2, 27, 0)
"""NCCL's features that scripts look for are there, by other means."""


def is_available() -> bool:
    """True: there is a device, and `cuda` is its name."""
    return True


def current_device() -> int:
    """The index that the script knows its device by."""
    return names.index()


def set_device(device: Any) -> None:
    """Know this process's device by another index.

    Raises:
        DeviceError: The host has no such device.
    """
    wanted = _get_device_index(device, optional=True)
    if wanted >= 0:
        names.choose(wanted)


class device:  # noqa: N801 - torch's name
    """`with torch.cuda.device(i):`, which changes nothing: every index means this device.

    Raises:
        DeviceError: The host has no such device.
    """

    def __init__(self, device: Any) -> None:
        self.idx = _get_device_index(device, optional=True)
        names.check(None if self.idx < 0 else self.idx)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        pass


class device_of(device):  # noqa: N801 - torch's name
    """`with torch.cuda.device_of(tensor):`, which changes nothing either."""

    def __init__(self, obj: Any) -> None:
        super().__init__(-1)


def _properties(device: Any = None) -> DeviceProperties:
    names.check(_get_device_index(device, optional=True))
    found = XlaModule.get_device_properties()
    if found.major:
        return found
    major, minor = _STAND_IN_CAPABILITY
    return found._replace(major=major, minor=minor)


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """The GPU's compute capability; (8, 0) for a CPU that stands in for one."""
    properties = _properties(device)
    return properties.major, properties.minor


def get_device_name(device: Any = None) -> str:
    """The device's kind in XLA's words, such as `NVIDIA H200` or `cpu`."""
    return _properties(device).name


def synchronize(device: Any = None) -> None:
    """Compute all that is recorded and wait for it. The step goes on."""
    XlaModule.current_stream().synchronize()


def _once_started(function: Callable[..., Any], otherwise: Any) -> Callable[..., Any]:
    """A question about the device's memory. It does not start the client, which it need not."""

    def answered(device: Any = None, *args: Any, **kwargs: Any) -> Any:
        return function() if Process.started else otherwise

    return answered


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """`memory_stats`, nested."""
    nested: dict[str, Any] = {}
    for name, value in torch.cuda.memory_stats(device).items():
        *path, last = name.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return nested


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """What is allocated, as text."""
    rows = {
        "allocated": (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()),
        "reserved": (torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved()),
    }
    lines = [f"{'bytes':<12}{'now':>18}{'peak':>18}"]
    lines += [f"{name:<12}{now:>18,}{peak:>18,}" for name, (now, peak) in rows.items()]
    return "\n".join(lines)


def get_rng_state_all() -> list[torch.Tensor]:
    """The random stream's state, for each index of the host; there is one stream."""
    return [XlaModule.get_rng_state()] * names.num_devices()


def set_rng_state_all(new_states: Any) -> None:
    """Go back to what `get_rng_state_all` returned."""
    XlaModule.set_rng_state(new_states[min(names.index(), len(new_states) - 1)])


class Event(streams.Event):
    """`torch.cuda.Event`, whose arguments come in another order than `torch.Event`'s."""

    def __new__(cls, enable_timing: bool = False, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(cls, enable_timing=enable_timing)

    def __init__(self, enable_timing: bool = False, *args: Any, **kwargs: Any) -> None:
        super().__init__(enable_timing=enable_timing)


class StreamContext:
    """`with torch.cuda.stream(s):`, which changes nothing: there is one stream."""

    def __init__(self, stream: Any = None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        pass


@contextmanager
def _ranged(msg: str = "", *args: Any, **kwargs: Any) -> Iterator[None]:
    yield


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Nothing to do."""


def _answer(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _devices() -> dict[str, Any]:
    return {
        "is_available": is_available,
        "is_initialized": _answer(True),
        "init": names.take,
        "_is_in_bad_fork": lambda: Process.forked,
        "_lazy_init": names.take,
        "_lazy_call": lambda call, **kwargs: call(),
        "device_count": names.num_devices,
        "_device_count_nvml": names.num_devices,
        "current_device": current_device,
        "set_device": set_device,
        "_exchange_device": _answer(-1),
        "_maybe_exchange_device": _answer(-1),
        "device": device,
        "device_of": device_of,
        "get_device_properties": _properties,
        "get_device_capability": get_device_capability,
        "get_device_name": get_device_name,
        "get_arch_list": lambda: ["sm_{}{}".format(*get_device_capability())],
        "can_device_access_peer": _answer(False),
        "is_bf16_supported": _answer(True),
        "is_tf32_supported": _answer(True),
        "ipc_collect": _nothing,
        "synchronize": synchronize,
        "set_sync_debug_mode": _nothing,
        "get_sync_debug_mode": _answer(0),
    }


def _random() -> dict[str, Any]:
    same = ("manual_seed", "manual_seed_all", "seed", "seed_all", "initial_seed")
    return {name: getattr(XlaModule, name) for name in same} | {
        "get_rng_state": XlaModule.get_rng_state,
        "set_rng_state": XlaModule.set_rng_state,
        "get_rng_state_all": get_rng_state_all,
        "set_rng_state_all": set_rng_state_all,
        "default_generators": (),
    }


def _memory() -> dict[str, Any]:
    allocated = _once_started(XlaModule.memory_allocated, 0)
    reserved = _once_started(XlaModule.memory_reserved, 0)
    reset = _once_started(XlaModule.reset_peak_memory_stats, None)
    return {
        "memory_allocated": allocated,
        "max_memory_allocated": _once_started(XlaModule.max_memory_allocated, 0),
        "memory_reserved": reserved,
        "max_memory_reserved": _once_started(XlaModule.max_memory_reserved, 0),
        "memory_cached": reserved,
        "max_memory_cached": reserved,
        "memory_stats": _once_started(XlaModule.memory_stats, {}),
        "memory_stats_as_nested_dict": memory_stats_as_nested_dict,
        "memory_summary": memory_summary,
        "memory_snapshot": _answer([]),
        "mem_get_info": XlaModule.mem_get_info,
        "reset_peak_memory_stats": reset,
        "reset_max_memory_allocated": reset,
        "reset_max_memory_cached": reset,
        "reset_accumulated_memory_stats": _nothing,
        "host_memory_stats": _answer({}),
        "host_memory_stats_as_nested_dict": _answer({}),
        "reset_peak_host_memory_stats": _nothing,
        "reset_accumulated_host_memory_stats": _nothing,
        "empty_cache": _nothing,
        "set_per_process_memory_fraction": _nothing,
        "get_per_process_memory_fraction": _answer(1.0),
        "get_allocator_backend": _answer("xla"),
        "caching_allocator_disabled": _answer(nullcontext()),
        "_record_memory_history": _nothing,
    }


def _streams() -> dict[str, Any]:
    return {
        "Stream": XlaModule.Stream,
        "Event": Event,
        "current_stream": lambda device=None: XlaModule.current_stream(),
        "default_stream": lambda device=None: XlaModule.current_stream(),
        "set_stream": XlaModule.set_stream,
        "stream": StreamContext,
        "StreamContext": StreamContext,
        "is_current_stream_capturing": _answer(False),
    }


def _nvtx() -> dict[str, Any]:
    ranged: Callable[..., AbstractContextManager[None]] = _ranged
    quiet = ("mark", "range_pop", "range_push", "range_start", "range_end")
    return {"range": ranged, **dict.fromkeys(quiet, _nothing)}


def _accelerator() -> dict[str, Any]:
    """`torch.accelerator` counts as `torch.cuda` does; it calls the device by its own name."""
    return {
        "device_count": names.num_devices,
        "current_device_index": current_device,
        "current_device_idx": current_device,
        "set_device_index": set_device,
        "set_device_idx": set_device,
    }


def _check_device(device: Any) -> None:
    """What a stream or an event is asked for: any of the host's devices."""
    names.check(None if device is None else _get_device_index(device, optional=True))


def register() -> None:
    """Put them in the place of torch's, in `torch.cuda` and in the modules it takes them from."""
    cuda: Any = torch.cuda
    answers = _devices() | _random() | _memory() | _streams()
    for module in (cuda, cuda.random, cuda.memory, cuda.streams, cuda.graphs):
        for name, answer in answers.items():
            if hasattr(module, name):
                setattr(module, name, answer)
    for name, answer in _nvtx().items():
        setattr(cuda.nvtx, name, answer)
    for name, answer in _accelerator().items():
        setattr(torch.accelerator, name, answer)
    setattr(streams, "_check", _check_device)  # noqa: B010
    for name in ("start", "stop"):
        setattr(cuda.profiler, name, _nothing)
    cuda.nccl.is_available = _answer(True)
    cuda.nccl.version = _answer(_NCCL_VERSION)
    torch.backends.cuda.is_built = _answer(True)
    torch.backends.cudnn.is_acceptable = _answer(False)
