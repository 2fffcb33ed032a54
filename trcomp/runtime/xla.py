"""The script API on the xla device: the same names as `plain`, which is without XLA."""

from __future__ import annotations

import torch

from trcomp.runtime import distributed, rng
from trcomp.runtime.capture.steps import step
from trcomp.runtime.data_parallel import (
    all_gather,
    all_reduce,
    broadcast,
    optimizer_step,
    reduce_gradients,
    start_owed,
)
from trcomp.runtime.device import NAME, Process, check_index
from trcomp.runtime.distributed import local_rank, rank, world_size
from trcomp.runtime.loader import DeviceLoader
from trcomp.runtime.metrics import metrics, metrics_report
from trcomp.runtime.padding import Padding
from trcomp.runtime.rng import manual_seed
from trcomp.runtime.sync import sync

__all__ = [
    "DeviceLoader",
    "Padding",
    "all_gather",
    "all_reduce",
    "broadcast",
    "device",
    "device_count",
    "local_rank",
    "manual_seed",
    "metrics",
    "metrics_report",
    "optimizer_step",
    "rank",
    "reduce_gradients",
    "rendezvous",
    "settle",
    "step",
    "sync",
    "take_rng_state",
    "world_size",
]


def device(index: int | None = None) -> torch.device:
    """This process's device, `xla:0`: each rank drives one.

    Raises:
        DeviceError: Another index was asked for.
    """
    Process.is_asked_for = True
    return check_index(torch.device(NAME) if index is None else torch.device(NAME, index))


def device_count() -> int:
    """Devices this process drives: one."""
    return 1


def rendezvous(tag: str, payload: bytes = b"") -> list[bytes]:
    """Wait until every rank is here; the ranks' payloads in order.

    Args:
        tag: Which meeting it is; every rank names the same ones in the same order.
        payload: Bytes for the other ranks.

    Raises:
        DeviceError: A rank did not come.
    """
    start_owed()
    return distributed.rendezvous(tag, payload)


def settle() -> None:
    """Compute all that is pending and wait for it, on this rank as on every other.

    Comes before one rank alone reads values: what is pending may hold collectives.
    """
    sync(wait=True)


def take_rng_state() -> int:
    """A number that `manual_seed` takes to repeat what is drawn from here on; draws nothing."""
    return rng.rest_seed()
