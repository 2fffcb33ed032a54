"""Notices a rank that makes no step any more, and has every rank of the host show its stacks."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trcomp import flags, progress, reserve
from trcomp.progress import Progress

_STALLED = 124
"""The exit code of a job whose ranks hang: timeout(1)'s."""
_STACKS_SECONDS = 2.0
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+)')


@dataclass(frozen=True)
class Stall:
    """What keeps ranks from going on that still run: a rank that stopped, or a host that is gone.

    Attributes:
        rank: The one that stopped, None if it is on another host.
        text: One sentence on it.
        details: Where each rank of the host is, and its stacks.
        time: When it was too long, by `time.monotonic`, counted from its last step: the host whose
            rank stopped first has the earliest.
        exit_code: The job's.
    """

    rank: int | None
    text: str
    details: str
    time: float
    exit_code: int = _STALLED


class Watcher(Protocol):
    """Looks for a stall while ranks run."""

    @property
    def poll_seconds(self) -> float:
        """How often to look."""

    def stall(self, wait: Callable[[float], object]) -> Stall | None:
        """What keeps them from going on, if something does; `wait` waits some seconds."""


@dataclass(frozen=True)
class Watchdog:
    """Looks at what the ranks of one host say of their progress.

    Attributes:
        directory: Where they say it.
        seconds: How long none of them may be silent after its first step.
        code: Where the user's code is: its lines are what a reader looks for.
    """

    directory: Path
    seconds: float
    code: Path

    @property
    def poll_seconds(self) -> float:
        """How often to look."""
        return min(5.0, self.seconds / 4)

    def stall(self, wait: Callable[[float], object]) -> Stall | None:
        """The rank that the others wait for, if it has been silent too long."""
        ranks = [one for one in progress.read(self.directory) if _alive(one.pid)]
        silent = [one for one in ranks if not one.ended]
        if not silent:
            return None
        first = min(silent, key=lambda one: (one.collectives, one.since))
        quiet = time.monotonic() - first.since
        if quiet < self.seconds:
            return None
        stacks = self._stacks(ranks, wait)
        at = self._script_line(stacks.get(first.rank, ""))
        ended = [str(one.rank) for one in ranks if one.ended]
        text = f"Rank {first.rank} has made no progress for {quiet:.0f} s{at}."
        if ended:
            text += (
                f" The script of rank {', '.join(ended)} has ended: ranks that make different "
                "numbers of steps wait for ever; give each as many batches."
            )
        details = self._details(ranks, stacks)
        return Stall(first.rank, text, details, first.since + self.seconds)

    def _stacks(self, ranks: Sequence[Progress], wait: Callable[[float], object]) -> dict[int, str]:
        reserve.give_back(self.directory)  # On a full disk the stacks need room.
        for one in ranks:
            with contextlib.suppress(OSError):
                os.kill(one.pid, progress.STACKS_SIGNAL)
        # A rank that is stopped never answers.
        deadline = time.monotonic() + _STACKS_SECONDS
        found: dict[int, str] = {}
        while time.monotonic() < deadline and any(not found.get(one.rank) for one in ranks):
            wait(0.1)
            for one in ranks:
                with contextlib.suppress(OSError):
                    place = progress.stacks_file(self.directory, one.rank)
                    found[one.rank] = place.read_text(encoding="utf-8", errors="replace")
        return found

    def _script_line(self, stacks: str) -> str:
        for found in _FRAME.finditer(_main_thread(stacks)):
            file = Path(found["file"])
            if file.is_relative_to(self.code) or file.is_relative_to(self.code.resolve()):
                return f", at {file.name}:{found['line']}"
        return ""

    def _details(self, ranks: Sequence[Progress], stacks: dict[int, str]) -> str:
        now = time.monotonic()
        lines = [
            f"After its first step a rank may be silent for {self.seconds:g} s: "
            f"{flags.WATCHDOG_SECONDS.name} says how long, 0 for ever.",
            "",
        ]
        for one in ranks:
            state = "has ended" if one.ended else f"silent for {now - one.since:.0f} s"
            last = f", last with other ranks: {one.collective}" if one.collective else ""
            lines.append(f"rank {one.rank}: {one.steps} steps, {state}{last}")
        for one in ranks:
            shown = _main_thread(stacks.get(one.rank, "")) or "It shows no stack: it is stopped.\n"
            lines += ["", f"rank {one.rank}, innermost call first:", shown.rstrip("\n")]
        return "\n".join(lines)


def _main_thread(stacks: str) -> str:
    """Of all threads' stacks the last, which is the script's own."""
    return stacks.strip().rpartition("\n\n")[2]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
