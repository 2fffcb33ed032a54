"""Starts a host's workers, carries their lines and signals, and ends with what became of them.

start all --> wait for an end or a signal --> first failure, or SIGTERM: tell the rest to stop
                                          --> grace over: SIGKILL --> nothing left --> Outcome
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from trcomp.entrypoint.processes import Signals, kill_descendants, reaped
from trcomp.entrypoint.watchdog import Stall, Watcher
from trcomp.env.variables import Variable
from trcomp.lines import Console, LinePump, start_pump

_LAST_LINES_SECONDS = 5.0


@dataclass(frozen=True)
class Worker:
    """One process to start.

    Attributes:
        rank: Its rank in the job, None for a process that is no rank.
        argv: The command.
        environ: Its whole environment.
        cwd: Where it starts.
        prefix: Stands before each of its lines.
        log: Where its own bytes are kept, if anywhere.
        error_file: Where it says why it failed, if it can.
        variables: Of its environment what was worked out for it, with the reasons.
    """

    rank: int | None
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    cwd: Path
    prefix: bytes = b""
    log: Path | None = None
    error_file: Path | None = None
    variables: tuple[Variable, ...] = ()


@dataclass(frozen=True)
class Exit:
    """How one worker ended.

    Attributes:
        worker: Which.
        returncode: Its exit code, or minus the signal that killed it.
        time: When, by `time.monotonic`.
        told_to_stop: Whether it had been sent a signal before.
        tail: Its last output, at most 32 KiB.
    """

    worker: Worker
    returncode: int
    time: float
    told_to_stop: bool
    tail: bytes


@dataclass(frozen=True)
class Outcome:
    """How the workers ended, in that order, and the signal that stopped them, if one did.

    Attributes:
        exits: The ends.
        signal: What this process was sent, None if it was left alone.
        signal_time: When, by `time.monotonic`.
        stall: The rank that was found to hang, if one was.
    """

    exits: tuple[Exit, ...]
    signal: int | None = None
    signal_time: float = math.inf
    stall: Stall | None = None


@dataclass
class _Running:
    worker: Worker
    process: subprocess.Popen[bytes]
    pump: LinePump
    thread: threading.Thread


def supervise(
    workers: Sequence[Worker],
    *,
    console: Console,
    signals: Signals,
    grace_seconds: float,
    on_started: Callable[[], object] = lambda: None,
    on_failure: Callable[[], object] = lambda: None,
    watchers: Sequence[Watcher] = (),
) -> Outcome:
    """Run workers to their end. When this returns, no process that they started is left.

    Args:
        workers: What to start.
        console: Where their lines meet.
        signals: Entered already; its stop signals are forwarded, a second one kills.
        grace_seconds: Between telling workers to stop and killing them.
        on_started: Called once all of them run.
        on_failure: Called before the rest is told to stop since one has failed.
        watchers: Say when they cannot go on; all are then told to stop.
    """
    supervision = _Supervision(console, signals, grace_seconds, on_failure, watchers)
    try:
        for worker in workers:
            supervision.start(worker)
        on_started()
        supervision.wait()
    finally:
        supervision.end()
    return supervision.outcome()


class _Supervision:
    def __init__(
        self,
        console: Console,
        signals: Signals,
        grace_seconds: float,
        on_failure: Callable[[], object],
        watchers: Sequence[Watcher],
    ) -> None:
        self._console = console
        self._signals = signals
        self._grace_seconds = grace_seconds
        self._on_failure = on_failure
        self._watchers = [(watcher, 0.0) for watcher in watchers]
        """Each with the time of its next look."""
        self._stall: Stall | None = None
        self._running: dict[int, _Running] = {}
        self._ended: list[tuple[_Running, int, float, bool]] = []
        self._deadline: float | None = None
        self._signal: int | None = None
        self._signal_time = math.inf
        self._killed = False

    def start(self, worker: Worker) -> None:
        """Start a worker in a session of its own: signals to our group are ours to forward."""
        raw: BinaryIO | None = worker.log.open("ab", buffering=0) if worker.log else None
        pump = LinePump(self._console, worker.prefix, raw)
        reading, writing = os.pipe()
        try:
            process = subprocess.Popen(
                worker.argv,
                env=dict(worker.environ),
                cwd=worker.cwd,
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                start_new_session=True,
            )
        finally:
            os.close(writing)
            thread = start_pump(reading, pump)
        self._running[process.pid] = _Running(worker, process, pump, thread)

    def wait(self) -> None:
        """Return when every worker has ended."""
        while self._running:
            self._signals.wait(self._next_look())
            self._collect()
            self._watch()
            self._obey()
            if self._seconds_left() == 0:
                self._send(signal.SIGKILL)
                self._killed = True

    def end(self) -> None:
        """Kill what is left, and wait for the last lines."""
        self._send(signal.SIGKILL)
        while self._running:
            self._signals.wait(0.05)
            self._collect()
        kill_descendants(self._signals.wait)
        for running, *_ in self._ended:
            running.thread.join(_LAST_LINES_SECONDS)

    def outcome(self) -> Outcome:
        exits = tuple(
            Exit(running.worker, returncode, at, told, running.pump.tail)
            for running, returncode, at, told in self._ended
        )
        return Outcome(exits, self._signal, self._signal_time, self._stall)

    def _collect(self) -> None:
        for pid, returncode in reaped():
            running = self._running.pop(pid, None)
            if running is None:
                continue  # an orphan that we adopted
            running.process.returncode = returncode
            told = self._deadline is not None
            self._ended.append((running, returncode, time.monotonic(), told))

    def _watch(self) -> None:
        if self._deadline is not None:
            return
        for index, (watcher, due) in enumerate(self._watchers):
            # One that is told to stop looks once more: the reason may be a rank of its own.
            if self._stall is None and (self._signals.received or time.monotonic() >= due):
                self._stall = watcher.stall(self._signals.wait)
                self._watchers[index] = watcher, time.monotonic() + watcher.poll_seconds

    def _obey(self) -> None:
        """Stop the rest after a failure or a signal; a second signal ends the grace."""
        received = self._signals.received
        failed = any(returncode != 0 for _, returncode, _, _ in self._ended) or self._stall
        if self._deadline is None and (received or failed):
            if received:
                self._signal, self._signal_time = received[0], time.monotonic()
            else:
                self._on_failure()
            self._deadline = time.monotonic() + self._grace_seconds
            self._send(self._signal or signal.SIGTERM)
        elif len(received) > 1:
            self._deadline = time.monotonic()

    def _send(self, number: int) -> None:
        # Only the worker itself is told to stop: its data loader's processes are its own to end,
        # and whatever it leaves behind is killed when all workers have ended.
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _next_look(self) -> float | None:
        if self._watchers and self._deadline is None:
            return max(0.0, min(due for _, due in self._watchers) - time.monotonic())
        return self._seconds_left()

    def _seconds_left(self) -> float | None:
        """Seconds of grace left; None if nothing is to be done when time passes."""
        if self._deadline is None or self._killed:
            return None
        return max(0.0, self._deadline - time.monotonic())
