"""What process 1 owes a host: signals noted, orphans reaped, nothing left alive."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Self

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILL_SECONDS = 10.0


class Signals:
    """Notes SIGTERM, SIGINT and the end of children while it is entered.

    Attributes:
        received: The stop signals so far, oldest first.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._previous_wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (*STOP_SIGNALS, signal.SIGCHLD):
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_wakeup)
        os.close(self._read)
        os.close(self._write)

    def wait(self, timeout_seconds: float | None) -> None:
        """Return at the next signal, or when the time is up."""
        select.select([self._read], [], [], timeout_seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number in STOP_SIGNALS:
            self.received.append(number)


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process, as they are of process 1 anyway."""
    if os.getpid() != 1:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have this process signalled when its parent ends: who is killed cannot clean up."""
    _prctl(_PR_SET_PDEATHSIG, number)


def reaped() -> Iterator[tuple[int, int]]:
    """``(pid, returncode)`` of every child that has ended; a killed one has minus its signal."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def kill_descendants(wait: Callable[[float], None]) -> int:
    """Kill whatever this process and its children ever started, in whatever session it hides.

    Args:
        wait: Waits some seconds, or less if a child ends meanwhile.

    Returns:
        How many processes were killed.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < deadline:
        for _ in reaped():
            pass
        alive = descendants(os.getpid())
        if not alive:
            break
        for pid in alive - killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= alive
        wait(0.05)
    return len(killed)


def descendants(ancestor: int) -> set[int]:
    """Every process below one, zombies included."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = [ancestor]
    while waiting:
        below = children.get(waiting.pop(), [])
        found.update(below)
        waiting.extend(below)
    return found


def _prctl(option: int, argument: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0)


def _parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # The command, in parentheses, may itself hold blanks and parentheses.
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            yield int(entry.name), int(fields[1])
