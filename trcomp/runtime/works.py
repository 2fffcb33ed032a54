"""Work handles of torch.distributed: of what is recorded, and of what gloo does on the host."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import torch
import torch._C._distributed_c10d as c10d
from torch._C._distributed_c10d import Work
from torch.futures import Future

from trcomp.runtime.data_parallel import start_owed
from trcomp.runtime.waiting import waiting


def done(result: Any = None) -> Work:
    """A work handle of something that is recorded."""
    future: Future[Any] = Future()
    future.set_result(result)
    return c10d._create_work_from_future(future)  # type: ignore[attr-defined]


class OnHost(Work):
    """What gloo does. Whoever waits for it first starts the collectives that are pending.

    Else a peer that waits for one of those on its device would never come to this.

    Args:
        work: What gloo does.
        place: Of the meeting of all ranks that this is, if it is one.
    """

    def __init__(self, work: Work, place: str = "") -> None:
        super().__init__()
        self._work = work
        self._place = place

    def wait(self, timeout: timedelta | None = None) -> bool:
        start_owed()
        with waiting(self._place) if self._place else contextlib.nullcontext():
            return self._work.wait() if timeout is None else self._work.wait(timeout)

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def is_success(self) -> bool:
        return self._work.is_success()

    def get_future(self) -> Any:
        return self._work.get_future()

    def _source_rank(self) -> int:
        return self._work._source_rank()


class Received(OnHost):
    """A message on its way to a device tensor: it has arrived once someone has waited for it."""

    def __init__(self, work: Work, held: list[torch.Tensor], tensors: list[torch.Tensor]) -> None:
        super().__init__(work)
        self._held, self._tensors = held, tensors

    def wait(self, timeout: timedelta | None = None) -> bool:
        super().wait(timeout)
        for tensor, held in zip(self._tensors, self._held, strict=True):
            tensor.detach().copy_(held)
        self._held, self._tensors = [], []
        return True
