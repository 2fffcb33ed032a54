"""Random state, memory and pending graphs of the device, in `xm`'s words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

import torch

import trcomp.runtime as rt


def get_rng_state(device: Any = None) -> int:
    """A number that `set_rng_state` takes to repeat what is drawn from here on."""
    return rt.take_rng_state()


def set_rng_state(seed: int, device: Any = None) -> None:
    """Start the device's random stream at `seed`."""
    rt.manual_seed(int(seed))


@contextlib.contextmanager
def fork_rng(device: Any = None, enabled: bool = True) -> Iterator[None]:
    """Put the device's random stream back, at the end, to where it was."""
    if not enabled:
        yield
        return
    module: Any = torch.get_device_module(rt.device())
    before = module.get_rng_state()
    try:
        yield
    finally:
        module.set_rng_state(before)


class MemoryInfo(TypedDict):
    """Bytes of the device's memory."""

    bytes_used: int
    bytes_limit: int
    peak_bytes_used: int


def get_memory_info(device: Any = None) -> MemoryInfo:
    """Memory in use, at its highest, and in all; on the CPU the process's and the machine's."""
    module: Any = torch.get_device_module(rt.device())
    _free, total = module.mem_get_info()
    used, peak = module.memory_allocated(), module.max_memory_allocated()
    return {"bytes_used": used, "bytes_limit": total, "peak_bytes_used": peak}


def optimization_barrier_(tensors: Sequence[torch.Tensor]) -> None:
    """Keep the compiler from moving or merging computations across these tensors, in place.

    Gradients pass as they are.
    """
    from trcomp.runtime.recompute import barrier

    with torch.no_grad():
        for tensor, behind in zip(tensors, barrier(list(tensors)), strict=True):
            tensor.copy_(behind)


def get_stablehlo(tensors: Sequence[torch.Tensor] | None = None) -> str:
    """The program that computes these pending tensors, or all, as StableHLO text."""
    from .. import _XLAC

    return _XLAC._get_stablehlo(tensors)


def get_stablehlo_bytecode(tensors: Sequence[torch.Tensor] | None = None) -> bytes:
    """The same as portable MLIR bytecode."""
    from .. import _XLAC

    return _XLAC._get_stablehlo_bytecode(tensors)
