"""The processes of a host's ranks, by multiprocessing: environment, lines, first failure."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, BinaryIO

from trcomp import error_file, flags
from trcomp.env import variables
from trcomp.errors import RankFailedError
from trcomp.lines import Console, LinePump, rank_prefix, start_pump
from trcomp.runtime import report

_PR_SET_PDEATHSIG = 1
_PUMP_SECONDS = 5.0
"""How long to wait for a dead rank's last lines; a grandchild may hold its stream open."""


class _Name(str):
    """A process name whose unpickling imports torch, and with it trcomp, before the script runs.

    A started process reads its name first. A script that imports torch_xla before torch then finds
    the module tree there.
    """

    __slots__ = ()


@dataclass(frozen=True)
class Failure:
    """What a rank sends when its function raises."""

    time: float
    error: bytes | None
    line: str
    traceback: str


class RemoteTraceback(Exception):
    """The traceback in the rank's own process; the cause of the exception raised here."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(rank, text)
        self.rank = rank
        self.text = text

    def __str__(self) -> str:
        return f"in rank {self.rank}:\n{self.text}"


@dataclass(frozen=True)
class _Started:
    rank: int
    process: SpawnProcess
    failures: Connection
    pumps: tuple[threading.Thread, ...]


class RankProcesses:
    """A host's started ranks."""

    def __init__(self, started: Sequence[_Started]) -> None:
        self._started = list(started)

    @classmethod
    def start(
        cls,
        fn: Callable[..., Any],
        args: Sequence[Any],
        environments: Sequence[Mapping[str, str]],
    ) -> RankProcesses:
        """Start one process per environment; each calls `fn(local_rank, *args)`."""
        resource_tracker.ensure_running()  # Else it would inherit, and hold open, a rank's stream.
        out, err = Console(os.dup(1)), Console(os.dup(2))
        ranks = cls([])
        try:
            for local_rank, environ in enumerate(environments):
                ranks._started.append(_start(fn, args, local_rank, environ, out, err))
        except BaseException:
            ranks.stop()
            raise
        return ranks

    @property
    def processes(self) -> list[SpawnProcess]:
        """The ranks' processes, in the order of ranks; none where the function ran in place."""
        return [started.process for started in self._started]

    def join(self) -> bool:
        """Wait for all ranks; the first failure stops the others. Always True: all have ended.

        Raises:
            SystemExit: The rank called `sys.exit` with this code, a signal killed it (128 +
                signal), or this process got SIGTERM.
            RankFailedError: The rank's exception cannot be sent here.
            Exception: What the rank's function raised, with the rank's traceback as its cause.
        """
        with _exit_on_sigterm():
            try:
                failed = self._first_failed()
            finally:
                self.stop()
        if failed is not None:
            _raise(failed, self._failures())
        return True

    def _first_failed(self) -> _Started | None:
        waiting = {started.process.sentinel: started for started in self._started}
        while waiting:
            for sentinel in connection.wait(list(waiting)):
                started = waiting.pop(sentinel)  # type: ignore[arg-type]
                started.process.join()
                if started.process.exitcode:
                    return started
        return None

    def stop(self) -> None:
        """End what still runs: SIGTERM, then SIGKILL after the grace period."""
        for started in self._started:
            started.process.terminate()
        deadline = time.monotonic() + flags.GRACE_SECONDS.get()
        for started in self._started:
            started.process.join(max(0.0, deadline - time.monotonic()))
            started.process.kill()
            started.process.join()
            for pump in started.pumps:
                pump.join(_PUMP_SECONDS)

    def _failures(self) -> list[tuple[Failure, int]]:
        """What the ranks sent, earliest first, with their numbers."""
        sent = []
        for started in self._started:
            with contextlib.suppress(EOFError):
                if started.failures.poll():
                    sent.append((started.failures.recv(), started.rank))
        return sorted(sent, key=lambda item: item[0].time)


def _start(
    fn: Callable[..., Any],
    args: Sequence[Any],
    local_rank: int,
    environ: Mapping[str, str],
    out: Console,
    err: Console,
) -> _Started:
    rank = variables.identity(environ).rank
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = SpawnProcess(
        target=_run,
        args=(fn, tuple(args), local_rank, sender, multiprocessing.get_start_method()),
        name=_Name(f"rank-{rank}"),
    )
    streams = [os.pipe(), os.pipe()]
    try:
        with _inherited(environ, streams[0][1], streams[1][1]):
            process.start()
    finally:
        for _, write_end in streams:
            os.close(write_end)
        sender.close()
    pumps = tuple(
        start_pump(read_end, LinePump(console, rank_prefix(rank), _raw_log(rank)))
        for (read_end, _), console in zip(streams, (out, err), strict=True)
    )
    return _Started(rank, process, receiver, pumps)


def _raw_log(rank: int) -> BinaryIO | None:
    """The rank's own log file, as the entrypoint keeps one for the ranks that it starts."""
    folder = flags.LOG_DIR.get()
    return Path(folder, f"rank-{rank}.log").open("ab") if folder else None


@contextlib.contextmanager
def _inherited(environ: Mapping[str, str], out: int, err: int) -> Iterator[None]:
    """Make the next process inherit this environment and these streams.

    multiprocessing starts a process with its parent's own, so the parent puts them on for a moment.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    own_environ, own_streams = dict(os.environ), (os.dup(1), os.dup(2))
    try:
        _replace_environ(environ)
        os.dup2(out, 1)
        os.dup2(err, 2)
        yield
    finally:
        _replace_environ(own_environ)
        for kept, number in zip(own_streams, (1, 2), strict=True):
            os.dup2(kept, number)
            os.close(kept)


def _replace_environ(environ: Mapping[str, str]) -> None:
    for name in set(os.environ) - set(environ):
        del os.environ[name]
    os.environ.update(environ)


def _run(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    local_rank: int,
    sender: Connection,
    start_method: str,
) -> None:
    """A rank's whole life, in its own process."""
    # A spawned process would spawn a data loader's workers too, seconds each; elsewhere they fork.
    multiprocessing.set_start_method(start_method, force=True)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent gets Ctrl-C too, and stops us.
    rank = variables.identity(os.environ).rank
    try:
        fn(local_rank, *args)
    except SystemExit as error:
        if error.code not in (None, 0):
            _report(error, rank)
        raise
    except Exception as error:
        error = error.with_traceback(_below(error))
        text = "".join(traceback.format_exception(error))
        print(text, end="", file=sys.stderr, flush=True)
        _report(error, rank)
        sender.send(_failure(error, text))
        raise SystemExit(1) from error


def _report(error: BaseException, rank: int) -> None:
    """Say why a rank failed where the entrypoint looks; the first rank to fail is heard."""
    # As Python does when an exception ends a script: what runs at exit can tell failure by it.
    sys.last_value = error
    path = flags.ERROR_FILE.get()
    if path:
        error_file.write(Path(path), error, rank=rank, host=report.host_name())


def _below(error: BaseException) -> TracebackType | None:
    """The traceback from the function's own first frame on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _failure(error: Exception, text: str) -> Failure:
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:
        pickled = None
    line = f"{type(error).__name__}: {error}"
    return Failure(time.monotonic(), pickled, line, text)


def _raise(failed: _Started, failures: list[tuple[Failure, int]]) -> None:
    if failures:
        failure, rank = failures[0]
        cause = RemoteTraceback(rank, failure.traceback)
        if failure.error is not None:
            raise pickle.loads(failure.error) from cause
        raise RankFailedError(failure.line, rank=rank, exit_code=1) from cause
    code = failed.process.exitcode or 0
    if code > 0:
        raise SystemExit(code)
    name = signal.Signals(-code).name
    error = RankFailedError(
        f"rank {failed.rank} was killed by {name}.", rank=failed.rank, exit_code=128 - code
    )
    print(f"trcomp: {error}", file=sys.stderr, flush=True)
    _report(error, failed.rank)
    raise SystemExit(error.exit_code) from error


@contextlib.contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit(143) while ranks run, so that they are stopped too."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
