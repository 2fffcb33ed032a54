"""Makes `xla` a device of this process: stock PyTorch's PrivateUse1, renamed.

Pure Python on `torch._C._acc`, which PyTorch has since 2.10.
"""

from __future__ import annotations

import os

import torch
from torch.utils import backend_registration

from trcomp.errors import DeviceError, ForkedProcessError
from trcomp.runtime import unwinding

NAME = "xla"


class Process:
    """What this process knows about its own life: does JAX run here, was it forked."""

    started = False
    """JAX has a live client: its threads do not survive a fork."""
    forked = False
    """This process is a fork of one whose client had started."""
    num_indices = 1
    """Indices that all mean this process's device: a CUDA script numbers the host's devices."""
    is_asked_for = False
    """The script asked for the device by its own name."""
    shown: torch.device | None = None
    """What the script sees the device as, if by another name than its own (`compat.cuda`)."""


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


def check_index(device: torch.device) -> torch.device:
    """`device` with its index filled in.

    Raises:
        DeviceError: It is not this process's device.
    """
    if device.type != NAME or not 0 <= (device.index or 0) < Process.num_indices:
        raise DeviceError(
            f"got device {str(device)!r}; this process drives xla:0 alone.",
            "Use trcomp.runtime.device(); with several devices each rank has its own process.",
        )
    return DEVICE


_held = torch._C.TensorBase.device.__get__


def is_on_device(tensor: torch.Tensor) -> bool:
    """Whether a tensor is on the device, whatever `tensor.device` shows (`compat.cuda`)."""
    return bool(_held(tensor).type == NAME)


def _register() -> torch.device:
    backend_registration.rename_privateuse1_backend(NAME)
    torch._C._acc.register_python_privateuseone_hook(backend_registration._DummyPrivateUse1Hook())
    torch._C._acc.register_python_privateuseone_device_guard(unwinding.DeviceGuard())
    unwinding.register()
    # The native property asks for torch's own XLA dispatch key, which is another one.
    setattr(torch.Tensor, "is_xla", property(is_on_device))  # noqa: B010
    # The client copies from any host memory, so there is nothing to pin; torch's own would ask the
    # device for an allocator.
    setattr(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor)  # noqa: B010
    # Backward runs on the calling thread: recording is not thread-safe, and the engine's device
    # thread costs 17 us a call.
    torch.autograd.set_multithreading_enabled(False)
    os.register_at_fork(after_in_child=_after_fork_in_child)
    return torch.device(NAME, 0)


DEVICE = _register()
