"""The device's other name: which device a CUDA script sees, and how many of them.

A process drives one device. A script that places something on `cuda` sees it as `cuda:N`, N being
the index it chose; a script that asks for the device by its own name first sees `xla:0`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from trcomp.errors import DeviceError
from trcomp.runtime import own_rank
from trcomp.runtime.device import DEVICE, NAME, Process, is_on_device

CUDA = "cuda"

_held = torch._C.TensorBase.device.__get__
_held_is_cuda: Any = torch._C.TensorBase.is_cuda


class Chosen:
    """What the script chose with `torch.cuda.set_device`."""

    index: int | None = None


@lru_cache(maxsize=1)
def num_devices() -> int:
    """Devices of this host: those of the job, else the GPUs found, else virtual ones on the CPU."""
    if own_rank.is_given():
        return own_rank.identity().local_world_size
    from trcomp.runtime.launch import topology_here

    topology, host_index = topology_here()
    return topology.hosts[host_index].num_devices


def index() -> int:
    """The index by which the script knows this process's device; at first its local rank."""
    if Chosen.index is not None:
        return Chosen.index
    if own_rank.is_given():
        return own_rank.identity().local_rank
    return 0


def choose(wanted: int) -> None:
    """Know this process's device by another index, as `torch.cuda.set_device` does."""
    check(wanted)
    Chosen.index = wanted
    if Process.shown is not None:
        Process.shown = torch.device(CUDA, wanted)


def check(wanted: int | None) -> None:
    """Refuse an index that the host has no device for.

    Raises:
        DeviceError: It is not among them.
    """
    if wanted is not None and not 0 <= wanted < num_devices():
        last = num_devices() - 1
        raise DeviceError(
            f"invalid device ordinal: got cuda:{wanted}; this host has "
            + ("cuda:0 alone." if not last else f"cuda:0 to cuda:{last}."),
            "Give the job as many devices as the script expects (`--devices`, or GPU_NUM_DEVICES "
            "for virtual ones on the CPU).",
        )


def own(device: Any) -> Any:
    """The device of this process where `device` means a CUDA device, else `device` as it is.

    Every index that the host has means this process's device: each rank drives one.

    Args:
        device: Anything a script may give for a device, or anything else.
    """
    kind = type(device)
    if kind is str:
        if not device.startswith(CUDA):
            return device
        device = torch.device(device)
    elif kind is int:
        check(device)
        take()
        return DEVICE
    elif kind is not torch.device:
        return device
    if device.type == CUDA:
        check(device.index)
        take()
        return DEVICE
    return DEVICE if device.type == NAME and device.index else device


def take() -> None:
    """From here on tensors on the device say `cuda`, unless the script asked for it as `xla`."""
    if Process.shown is not None or Process.is_asked_for:
        return
    Process.shown = torch.device(CUDA, index())
    setattr(torch.Tensor, "device", property(_device, doc=torch.Tensor.device.__doc__))  # noqa: B010
    setattr(torch.Tensor, "is_cuda", property(_is_cuda))  # noqa: B010
    setattr(torch.Tensor, "get_device", _get_device)  # noqa: B010
    setattr(torch.Tensor, "__cuda_array_interface__", property(_memory))  # noqa: B010


def shown(device: torch.device) -> torch.device:
    """A device as the script sees it."""
    return Process.shown if device == DEVICE and Process.shown is not None else device


def _device(tensor: torch.Tensor) -> torch.device:
    device: torch.device = _held(tensor)
    # A wrapper of tensors answers torch's C++ with this, which knows the device by its own name.
    wraps = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return device if wraps or torch._is_functional_tensor(tensor) else shown(device)


def _is_cuda(tensor: torch.Tensor) -> bool:
    return _held(tensor) == DEVICE or bool(_held_is_cuda.__get__(tensor))


_held_get_device = torch.Tensor.get_device


def _get_device(tensor: torch.Tensor) -> int:
    return index() if _held(tensor) == DEVICE else _held_get_device(tensor)


_held_memory: Any = torch.Tensor.__cuda_array_interface__


def _memory(tensor: torch.Tensor) -> Any:
    """What other libraries read a GPU's memory by."""
    if is_on_device(tensor):
        raise AttributeError("the tensor's memory is XLA's; use tensor.cpu().")
    return _held_memory.__get__(tensor)
