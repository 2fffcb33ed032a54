"""Puts all of it in place, once, in a process that has the runtime."""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

import torch
from torch import _tensor_str
from torch._subclasses.fake_tensor import FakeTensor

from trcomp.changes import when_imported
from trcomp.compat.cuda import (
    autocast,
    boundaries,
    functions,
    names,
    placement,
    refusals,
    saving,
    spawning,
    types,
)
from trcomp.compat.process_group import accept_nccl
from trcomp.errors import DeviceMemoryError
from trcomp.runtime.device import Process, is_on_device

_done = False


def install() -> None:
    """Make `cuda` mean this process's device. Opens no device, neither CUDA's nor XLA's."""
    global _done
    if _done:
        return
    _done = True
    Process.num_indices = sys.maxsize  # `own` has checked an index where it came as one.
    placement.register()
    functions.register()
    types.register()
    autocast.register()
    saving.register()
    boundaries.register()
    spawning.register()
    refusals.register()
    accept_nccl()
    _register_modules()
    _register_compile()
    _register_profiler()
    _register_printing()
    _register_tracing()
    torch.cuda.OutOfMemoryError = torch.OutOfMemoryError = DeviceMemoryError  # type: ignore[misc,assignment]


def _register_modules() -> None:
    """Layers and functions that would drive several GPUs, or write kernels for one."""
    parallel: Any = torch.nn.DataParallel

    def init(self: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        torch.nn.Module.__init__(self)
        self.module, self.device_ids = module.to(torch.device(names.CUDA)), []
        if names.num_devices() > 1:
            _tell(
                "nn.DataParallel runs on this process's device alone; use DistributedDataParallel"
            )

    parallel.__init__ = wraps(parallel.__init__)(init)


def _register_compile() -> None:
    """CUDA graphs are a backend of `torch.compile`; a step is one executable anyway."""
    compiled: Any = torch.compile

    @wraps(compiled)
    def compile_(model: Any = None, **kwargs: Any) -> Any:
        if kwargs.get("backend") == "cudagraphs":
            kwargs["backend"] = "trcomp"
        return compiled(model, **kwargs)

    setattr(torch, "compile", compile_)  # noqa: B010


def _register_profiler() -> None:
    """The host's part of a profile: the device's is XLA's own."""
    kineto: Any = torch.profiler.profiler._KinetoProfile
    init = kineto.__init__

    @wraps(init)
    def without_cuda(self: Any, *, activities: Any = None, **kwargs: Any) -> None:
        if activities is not None:
            host = torch.profiler.ProfilerActivity.CPU
            activities = [a for a in activities if a != torch.profiler.ProfilerActivity.CUDA]
            activities = activities or [host]
        init(self, activities=activities, **kwargs)

    kineto.__init__ = without_cuda
    profile: Any = torch.autograd.profiler.profile
    start = profile.__init__

    @wraps(start)
    def start_without_cuda(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("use_cuda", None)
        if kwargs.get("use_device") == names.CUDA:
            kwargs["use_device"] = None
        start(self, *args, **kwargs)

    profile.__init__ = start_without_cuda


def _register_tracing() -> None:
    """Traced code branches by the device that the script sees, and runs on the one there is.

    Tensors that stand in for others while a graph is traced are on the device by its own name:
    torch's C++ ends the process where it meets one that says `cuda`.
    """
    stand_in: Any = FakeTensor
    named: Any = stand_in._normalize_fake_device
    stand_in._normalize_fake_device = staticmethod(lambda device: named(names.own(device)))
    when_imported({"torch._dynamo.variables.tensor": _show_when_traced})


def _show_when_traced(module: Any) -> None:
    variable = module.TensorVariable
    known = variable.specialize

    def specialize(value: torch.Tensor) -> dict[str, Any]:
        properties: dict[str, Any] = known(value)
        properties["device"] = names.shown(properties["device"])
        return properties

    variable.specialize = staticmethod(specialize)


_told: set[str] = set()


def _tell(text: str) -> None:
    if text not in _told:
        _told.add(text)
        print(f"trcomp: {text} (named once)", file=sys.stderr)


def _register_printing() -> None:
    """torch formats a CUDA tensor's numbers on its device, operation by operation."""
    format_numbers: Any = _tensor_str._tensor_str

    @wraps(format_numbers)
    def format_on_host(self: torch.Tensor, indent: int) -> str:
        text: str = format_numbers(self.detach().cpu() if is_on_device(self) else self, indent)
        return text

    _tensor_str._tensor_str = format_on_host
