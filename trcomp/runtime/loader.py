"""The prefetching loader of the xla device: batches arrive while the step before still computes."""

from __future__ import annotations

from typing import Any

import torch

from trcomp.runtime.batches import map_tensors
from trcomp.runtime.device import NAME, check_index
from trcomp.runtime.prefetch import PrefetchLoader
from trcomp.runtime.sync import sync
from trcomp.runtime.transfer import to_device


class DeviceLoader(PrefetchLoader):
    """A loader whose batches lie on the xla device, and a step barrier after each.

    Args:
        loader: A `DataLoader`, or any iterable of batches.
        device: The device; None is this process's.
        prefetch: Batches moved ahead; None reads the flag.
        batches_per_execution: Batches between step barriers.

    Raises:
        SpecError: A count is not positive.
        DeviceError: The device is not this process's.
    """

    def __init__(
        self,
        loader: Any,
        device: torch.device | str | None = None,
        prefetch: int | None = None,
        batches_per_execution: int = 1,
    ) -> None:
        target = check_index(torch.device(NAME if device is None else device))
        self._device = target

        def move(batch: Any) -> Any:
            return map_tensors(batch, lambda t: to_device(t, target) if t.is_cpu else t)

        super().__init__(loader, move, sync, prefetch, batches_per_execution)
