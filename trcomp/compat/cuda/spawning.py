"""`torch.multiprocessing.spawn`: one rank per device, as `torch_xla.launch` starts them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from torch import multiprocessing

from trcomp.runtime import launch
from trcomp.runtime.rank_processes import RankProcesses


class Started:
    """What `spawn(join=False)` returns: torch's `ProcessContext`, as far as scripts use it."""

    def __init__(self, ranks: RankProcesses) -> None:
        self._ranks = ranks

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait for all ranks; True, for there is nothing left to wait for.

        Raises:
            Exception: What the first failing rank raised.
        """
        self._ranks.join()
        return True


def _spawn(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> Started | None:
    ranks = launch.spawn(fn, args, nprocs, join=join, start_method=start_method)
    return None if ranks is None else Started(ranks)


def register() -> None:
    """Start ranks for whoever spawns one process per GPU."""
    for name in ("spawn", "start_processes"):
        setattr(multiprocessing, name, wraps(getattr(multiprocessing, name))(_spawn))
