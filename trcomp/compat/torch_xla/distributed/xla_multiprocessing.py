"""`xmp.spawn`: a script's own way of starting its ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

import trcomp.runtime as rt
from trcomp.env import variables
from trcomp.runtime import launch

from .._missing import missing

__getattr__ = missing(__name__)


def spawn(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> Any:
    """Run `fn(local_rank, *args)` on each of this host's ranks.

    In a process that is a rank already the function is called in place, whatever the start method.
    Returns None, or with `join=False` the started ranks, whose `join()` waits for them.
    """
    _note_old_variables()
    if variables.has_identity(os.environ):
        start_method = "spawn"
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


def create_optimized_replica_groups() -> None:
    """None: an order of devices is known for TPUs alone."""


@cache
def _note_old_variables() -> None:
    """Say once, on rank 0, that variables of torch_xla's first runtime have no effect."""
    found = sorted(name for name in os.environ if name.startswith("XRT_"))
    if found and rt.rank() == 0:
        print(
            f"trcomp: {', '.join(found)} have no effect: the ranks are laid out already.",
            file=sys.stderr,
        )
