"""The request to end, SIGTERM: noted by a rank, agreed on by all of them at the end of a step."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from trcomp import flags, progress
from trcomp.checkpoint.ranks import Ranks

EXIT_CODE = 128 + signal.SIGTERM


class Notice:
    """Notes SIGTERM, which a spot instance gets before it is taken away.

    Attributes:
        given: Whether this process was told to end.
    """

    def __init__(self, before_end: Callable[[], object]) -> None:
        """Begin to listen; only a process's main thread can.

        Args:
            before_end: Called in a thread before this process ends with a job that has failed.
        """
        self.given = False
        self._previous: Any = None
        if _in_main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._note)
            # A process that this one forks ends when it is told to, whatever it is waiting in.
            os.register_at_fork(after_in_child=self.ignore)
            _end_with_failed_job(before_end)

    def ignore(self) -> None:
        """Listen no more."""
        if signal.getsignal(signal.SIGTERM) == self._note and _in_main_thread():
            signal.signal(signal.SIGTERM, self._previous or signal.SIG_DFL)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.given = True
        if callable(self._previous):
            self._previous(number, frame)


class Vote:
    """Whether any rank was told to end, known one step later: no rank waits for the others' word.

    Ranks hear of it at different steps. What they do together must be the same on all of them, so
    the word travels with the step, as the gradients do.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._last: Callable[[], bool] = lambda: False

    def cast(self, given: bool) -> bool:
        """Say at a step's end whether this rank was told; whether one was by the step before."""
        if self._ranks.world_size == 1:
            return given
        last, self._last = self._last, _read_later(self._ranks.largest(float(given)))
        return last()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _read_later(value: torch.Tensor) -> Callable[[], bool]:
    """Reads a value without waiting for what the device is given after it."""
    if value.device.type != "cuda":
        return lambda: bool(value.item())
    host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
    host.copy_(value, non_blocking=True)
    copied = torch.Event("cuda")
    copied.record()

    def read() -> bool:
        copied.synchronize()
        return bool(host.item())

    return read


def _end_with_failed_job(before_end: Callable[[], object]) -> None:
    """Have SIGTERM end this process as it always did where it comes since another rank failed.

    A step that waits for a rank that is gone does not end, and while it waits no Python handler
    runs; what C's handler writes into a pipe is read by a thread.
    """
    place = flags.PROGRESS_DIR.get()
    if not place:
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    taken = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if taken != -1:  # An event loop listens.
        signal.set_wakeup_fd(taken)
        os.close(reader)
        os.close(writer)
        return

    def listen() -> None:
        while signal.SIGTERM not in os.read(reader, 64) or not progress.has_failed(Path(place)):
            pass
        before_end()
        os._exit(EXIT_CODE)

    threading.Thread(target=listen, name="trcomp-stop", daemon=True).start()
