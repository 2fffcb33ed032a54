"""`MpDeviceLoader` and `ParallelLoader` over trcomp's prefetching loader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import trcomp.runtime as rt


class MpDeviceLoader(rt.DeviceLoader):
    """A loader whose batches lie on this rank's device, and a step mark after each.

    Args:
        loader: A `DataLoader`, or any iterable of batches.
        device: This rank's device.
        device_prefetch_size: Batches moved ahead; None reads trcomp's flag.
        batches_per_execution: Batches between step marks.
        kwargs: torch_xla's other words (`loader_prefetch_size`, `batchdim`, ...): accepted, since
            the loader has one queue and one thread.
    """

    def __init__(
        self,
        loader: Any,
        device: torch.device | str | None = None,
        device_prefetch_size: int | None = None,
        batches_per_execution: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(loader, device, device_prefetch_size, batches_per_execution)


class ParallelLoader:
    """The older spelling: a loader for the devices of this process, of which there is one."""

    def __init__(self, cpu_loader: Any, devices: Sequence[Any], **kwargs: Any) -> None:
        self._loaders = {torch.device(d): MpDeviceLoader(cpu_loader, d, **kwargs) for d in devices}

    def per_device_loader(self, device: Any) -> MpDeviceLoader:
        """The loader of one of the devices."""
        return self._loaders[torch.device(device)]
