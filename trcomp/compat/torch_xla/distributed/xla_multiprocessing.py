"""`xmp.spawn`: a script's own way of starting its ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import trcomp.runtime as rt
from trcomp.runtime import launch


def spawn(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> Any:
    """Run `fn(local_rank, *args)` on each of this host's ranks.

    In a process that is a rank already the function is called in place. Returns None, or with
    `join=False` the started ranks, whose `join()` waits for them.
    """
    return launch.spawn(fn, args, nprocs, join=join, start_method=start_method)


class MpModelWrapper:
    """A model made before the ranks start; `to` gives this rank's copy."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def to(self, device: Any) -> torch.nn.Module:
        """The model on the device."""
        return self._model.to(device)


class MpSerialExecutor:
    """Runs a function in one rank at a time, in the order of ranks."""

    def run(self, fn: Callable[[], Any]) -> Any:
        """`fn()` of this rank, when the ranks before it are done."""
        result = None
        for turn in range(rt.world_size()):
            if turn == rt.rank():
                result = fn()
            rt.rendezvous("torch_xla.distributed.xla_multiprocessing.MpSerialExecutor")
        return result
