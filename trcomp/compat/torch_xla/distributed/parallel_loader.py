"""`MpDeviceLoader` and `ParallelLoader` over trcomp's prefetching loader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import trcomp.runtime as rt

from .._missing import missing
from .._refused import internal

__getattr__ = missing(__name__)

PerDeviceQueue = internal("torch_xla.distributed.parallel_loader.PerDeviceQueue")


class MpDeviceLoader(rt.DeviceLoader):
    """A loader whose batches lie on this rank's device, and a step mark after each.

    Args:
        loader: A `DataLoader`, or any iterable of batches.
        device: This rank's device.
        device_prefetch_size: Batches moved ahead; None reads trcomp's flag.
        batches_per_execution: Batches between step marks.
        pad: Makes batches few shapes, as `trcomp.runtime.DeviceLoader` has it; `uneven` likewise.
        kwargs: torch_xla's other words (`loader_prefetch_size`, `batchdim`, ...): accepted, since
            the loader has one queue and one thread.
    """

    def __init__(
        self,
        loader: Any,
        device: torch.device | str | None = None,
        device_prefetch_size: int | None = None,
        batches_per_execution: int = 1,
        pad: rt.Padding | None = None,
        uneven: str = "error",
        **kwargs: Any,
    ) -> None:
        super().__init__(loader, device, device_prefetch_size, batches_per_execution, pad, uneven)


PerDeviceLoader = MpDeviceLoader
"""What `ParallelLoader.per_device_loader` gives."""


class ParallelLoader:
    """The older spelling: a loader for the devices of this process, of which there is one."""

    def __init__(self, cpu_loader: Any, devices: Sequence[Any], **kwargs: Any) -> None:
        self._loaders = {torch.device(d): MpDeviceLoader(cpu_loader, d, **kwargs) for d in devices}

    def per_device_loader(self, device: Any) -> MpDeviceLoader:
        """The loader of one of the devices."""
        return self._loaders[torch.device(device)]

    def per_device_samples(self) -> int:
        """Batches of each device."""
        return len(next(iter(self._loaders.values())))

    def close(self) -> None:
        """Nothing to end: each iteration ends its own thread."""
