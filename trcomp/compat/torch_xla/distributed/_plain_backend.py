"""The backend "xla" without XLA (`enabled=False`): gloo, or NCCL where torch has GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import register_rendezvous_handler, rendezvous


class ProcessGroupXla(dist.ProcessGroup):
    """No group of its own here; for `isinstance`."""


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    if torch.cuda.is_available():
        return dist.ProcessGroupNCCL(store, rank, size, dist.ProcessGroupNCCL.Options())
    return dist.ProcessGroupGloo(store, rank, size, timeout)


def _meet(url: str, timeout: timedelta, **options: Any) -> Iterator[Any]:
    return cast("Iterator[Any]", rendezvous("env://", timeout=timeout))


dist.Backend.register_backend("xla", _create, devices=["cpu", "cuda"])
register_rendezvous_handler("xla", _meet)
