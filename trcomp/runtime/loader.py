"""The prefetching loader of the xla device: batches arrive while the step before still computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trcomp.runtime.batches import map_tensors, named_tensors
from trcomp.runtime.data_parallel import start_owed
from trcomp.runtime.device import NAME, check_index, is_on_device
from trcomp.runtime.distributed import rendezvous
from trcomp.runtime.padding import Padding
from trcomp.runtime.passes import Pass
from trcomp.runtime.prefetch import ERROR, PrefetchLoader
from trcomp.runtime.storage import value_of
from trcomp.runtime.sync import sync
from trcomp.runtime.transfer import to_device


class DeviceLoader(PrefetchLoader):
    """A loader whose batches lie on the xla device, and a step barrier after each.

    Args:
        loader: A `DataLoader`, or any iterable of batches.
        device: The device; None is this process's.
        prefetch: Batches moved ahead; None reads the flag.
        batches_per_execution: Batches between step barriers.
        pad: Makes batches few shapes; None leaves them as they are.
        uneven: "error": a rank with more batches than another is told so; "shortest": each pass
            ends with the rank that has the fewest, so all ranks must make it.

    Raises:
        SpecError: A count is not positive, or `uneven` is another word.
        DeviceError: The device is not this process's.
        UnevenDataError: In a pass, if another rank's had another number of batches.
    """

    def __init__(
        self,
        loader: Any,
        device: torch.device | str | None = None,
        prefetch: int | None = None,
        batches_per_execution: int = 1,
        pad: Padding | None = None,
        uneven: str = ERROR,
    ) -> None:
        target = check_index(torch.device(NAME if device is None else device))
        self._device = target

        def move(batch: Any) -> Any:
            moved = map_tensors(batch, lambda t: to_device(t, target) if t.is_cpu else t)
            _name(moved)
            return moved

        super().__init__(loader, move, sync, prefetch, batches_per_execution, pad, uneven, _lengths)

    def _begin_pass(self) -> Callable[[int], None]:
        return Pass().end


def _lengths(length: int) -> list[int]:
    start_owed()
    return [int(text) for text in rendezvous("trcomp/lengths", str(length).encode())]


def _name(batch: Any) -> None:
    """Let what a recompile says of a batch's tensor name it."""
    for name, tensor in named_tensors(batch):
        buffer = value_of(tensor).buffer if is_on_device(tensor) else None
        if buffer is not None:
            buffer.name = name
