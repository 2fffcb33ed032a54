"""torch_xla's names over trcomp.runtime: devices, the step, regions, launching."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import trcomp.runtime as rt
from trcomp.compat import TORCH_XLA_VERSION

from . import _XLAC, runtime
from ._compile import compile, set_custom_compile_options, step
from ._missing import missing
from ._refused import refused
from .core import xla_model
from .distributed.xla_multiprocessing import spawn

__all__ = [
    "_XLAC",
    "compile",
    "device",
    "device_count",
    "devices",
    "launch",
    "manual_seed",
    "real_devices",
    "runtime",
    "save_as_stablehlo",
    "save_torch_model_as_stablehlo",
    "set_custom_compile_options",
    "step",
    "sync",
    "xla_model",
]

__getattr__ = missing(__name__)

__version__ = TORCH_XLA_VERSION

_EXPORT = (
    "exporting models is not offered",
    "Save the state_dict, and export the model with torch.export where it will run.",
)
save_as_stablehlo = refused("torch_xla.save_as_stablehlo", *_EXPORT)
save_torch_model_as_stablehlo = refused("torch_xla.save_torch_model_as_stablehlo", *_EXPORT)


def device(index: int | None = None) -> torch.device:
    """This rank's device."""
    return rt.device(index)


def devices() -> list[torch.device]:
    """The devices this process drives: one."""
    return [rt.device()]


def device_count() -> int:
    """Number of devices this process drives."""
    return rt.device_count()


def real_devices() -> list[str]:
    """What the devices are, such as `CPU:0` or `CUDA:1`."""
    return xla_model.xla_real_devices()


def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """End the step: compile and run all that is pending."""
    xla_model.end_step(wait)


def manual_seed(seed: int, device: torch.device | None = None) -> None:
    """Seed the device's random stream."""
    rt.manual_seed(seed)


def launch(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    start_method: str = "spawn",
    debug_single_process: bool = False,
) -> Any:
    """Run `fn(local_rank, *args)` on each of this host's ranks; in a rank's process, in place."""
    return spawn(fn, args, 1 if debug_single_process else None, start_method=start_method)
