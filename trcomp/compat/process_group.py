"""The nccl backend of a script written for GPUs: the device's own, under that name."""

from __future__ import annotations

from datetime import timedelta
from functools import wraps
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed import distributed_c10d

from trcomp.compat.cuda.names import own
from trcomp.runtime.device import DEVICE
from trcomp.runtime.process_group import XlaProcessGroup
from trcomp.runtime.process_groups import NAMES, become

_NAME = "nccl"
_TIMEOUT = timedelta(minutes=10)
"""torch's own for nccl."""


class Options(SimpleNamespace):
    """`ProcessGroupNCCL.Options`: what it is given is accepted; XLA makes its own choices."""

    global_ranks_in_group: tuple[int, ...] = ()
    _timeout = _TIMEOUT

    def __init__(self, is_high_priority_stream: bool = False, **others: Any) -> None:
        super().__init__(
            is_high_priority_stream=is_high_priority_stream, config=SimpleNamespace(), **others
        )


class ProcessGroupNCCL(XlaProcessGroup):
    """A group of ranks that a script asks nccl for."""

    backend_name = _NAME
    Options = Options

    def __init__(self, store: Store, rank: int, size: int, options: Any = None) -> None:
        options = Options() if options is None else options
        ranks = list(options.global_ranks_in_group)
        if not ranks:
            become(rank, size, store)
        super().__init__(store, rank, size, ranks, options._timeout)


def accept_nccl() -> None:
    """Make nccl available, as it is where torch was built for GPUs."""
    for module in (distributed_c10d, dist):
        setattr(module, "ProcessGroupNCCL", ProcessGroupNCCL)  # noqa: B010
    distributed_c10d._NCCL_AVAILABLE = True
    setattr(distributed_c10d, "default_pg_nccl_timeout", _TIMEOUT)  # noqa: B010
    NAMES.add(_NAME)
    _accept_device_id()


def _accept_device_id() -> None:
    """Let `init_process_group(device_id=...)` name the CUDA device; a rank has only the one."""
    join: Any = dist.init_process_group

    @wraps(join)
    def init_process_group(*args: Any, device_id: Any = None, **kwargs: Any) -> None:
        join(*args, device_id=None if own(device_id) is DEVICE else device_id, **kwargs)

    for module in (distributed_c10d, dist):
        setattr(module, "init_process_group", init_process_group)  # noqa: B010
