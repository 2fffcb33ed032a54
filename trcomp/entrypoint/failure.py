"""Who failed first, and the output/failure file that says so."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time as clock
from dataclasses import dataclass, replace
from pathlib import Path

from trcomp import error_file, reserve
from trcomp.entrypoint.supervisor import Exit, Outcome
from trcomp.error_file import ErrorReport
from trcomp.lost_peer import BROKEN_CONNECTION

_FIRST_LINE_CHARS = 800
"""SageMaker shows the file's first 1,024 characters: rank and host still fit after this."""
_TAIL_LINES = 20
_ABORTED = b"Terminating process because the JAX distributed service detected fatal errors"
_UNHEARD = re.compile(rb"stopped sending heartbeats\):\s*((?:[\w:/]*\d+,?\s*\n)+)")
"""JAX's coordinator aborts the ranks with these words when it does not hear of one any more."""


@dataclass(frozen=True)
class Failure:
    """The failure to blame.

    Attributes:
        exception: One line: the exception, or how the worker ended.
        rank: Whose, None if it was no rank's.
        host: On which host.
        exit_code: The job's exit code.
        details: The traceback, or the worker's last lines.
        time: When it failed, by `time.monotonic`.
    """

    exception: str
    rank: int | None
    host: str
    exit_code: int
    details: str
    time: float

    @property
    def text(self) -> str:
        """The contents of output/failure."""
        return f"{self._head}\n{self._who}\n\n{self.details}".rstrip() + "\n"

    @property
    def file_time(self) -> float:
        """When it failed, in seconds since the epoch, as this machine's clock now counts them."""
        return clock.time() - (clock.monotonic() - self.time)

    @property
    def summary(self) -> str:
        """One line for the log."""
        return f"Failed first: {self._who}: {self._head}"

    @property
    def _head(self) -> str:
        line = self.exception.strip().partition("\n")[0]
        return line if len(line) <= _FIRST_LINE_CHARS else f"{line[:_FIRST_LINE_CHARS]}..."

    @property
    def _who(self) -> str:
        rank = "" if self.rank is None else f"rank {self.rank} on "
        return f"{rank}host {self.host}, exit code {self.exit_code}"


def exit_code(returncode: int) -> int:
    """The code a shell would show: the process's own, or 128 + the signal that killed it."""
    return returncode if returncode >= 0 else 128 - returncode


def blamed(outcome: Outcome, host: str, what: str = "The script") -> Failure | None:
    """The earliest failure, or None if nobody failed.

    A worker's time is that of its error file, or else of its end: one that raised first may end
    last. Workers that we told to stop are not to blame for how they end, unless they had failed
    before that. The same holds where this host itself was told to stop: most often since another
    host failed, and that may have been brought down by an error raised here.

    Args:
        outcome: How all workers ended.
        host: This host's name.
        what: The subject of the sentence about one that left no exception.
    """
    failures: list[tuple[float, Exit, ErrorReport | None]] = []
    for ended in outcome.exits:
        path = ended.worker.error_file
        report = None if path is None or ended.returncode == 0 else error_file.read(path)
        if report is not None and report.time < outcome.signal_time:
            failures.append((report.time, ended, report))
        elif ended.returncode != 0 and not ended.told_to_stop and outcome.signal is None:
            failures.append((ended.time, ended, None))
    stall = outcome.stall
    if stall is not None and all(stall.time < time for time, *_ in failures):
        return Failure(stall.text, stall.rank, host, stall.exit_code, stall.details, stall.time)
    if not failures:
        return None
    time, ended, report = min(failures, key=lambda failure: failure[0])
    failure = _of(ended, report, host, what, time)
    note = _uneven(failure, outcome)
    return replace(failure, details=f"{note}\n\n{failure.details}") if note else failure


def _uneven(failure: Failure, outcome: Outcome) -> str:
    """Why a connection broke, if it was to a rank that had come to its end; else empty."""
    ended = sorted(
        exit.worker.rank
        for exit in outcome.exits
        if exit.returncode == 0 and not exit.told_to_stop and exit.worker.rank is not None
    )
    if not ended or not BROKEN_CONNECTION.search(failure.exception):
        return ""
    ranks = "rank" if len(ended) == 1 else "ranks"
    return (
        f"The script of {ranks} {', '.join(map(str, ended))} had ended before, and rank "
        f"{failure.rank} had more to do with all ranks: they made different numbers of steps. Give "
        "each as many batches: DistributedSampler(drop_last=True)."
    )


def write(path: Path, text: str, time: float | None = None) -> None:
    """Write output/failure, unless the script has written its own.

    Args:
        path: The file.
        text: Its contents.
        time: The file's time, by which the earliest of several hosts' failures is found; None: now.
    """
    reserve.give_back(path.parent)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or not path.stat().st_size:
            path.write_text(text, errors="replace")
        if time is not None:
            os.utime(path, (time, time))


def _of(ended: Exit, report: ErrorReport | None, host: str, what: str, time: float) -> Failure:
    code = exit_code(ended.returncode)
    if report is None:
        how = _lost_peer(ended) or f"{what} {_ending(ended.returncode)}"
        return Failure(how, ended.worker.rank, host, code, _last_lines(ended.tail), time)
    if ended.told_to_stop and ended.returncode < 0:
        code = report.exit_code  # It had raised; our signal only came before its own end.
    rank = ended.worker.rank if report.rank is None else report.rank
    return Failure(report.exception, rank, host, code, report.traceback, time)


def _ending(returncode: int) -> str:
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    name = signal.Signals(-returncode).name if -returncode in set(signal.Signals) else ""
    memory = ": most often the kernel, when memory runs out" if name == "SIGKILL" else ""
    return f"was killed by {name or f'signal {-returncode}'}{memory}"


def _lost_peer(ended: Exit) -> str:
    """Why JAX aborted a rank: another one is silent. Empty if it did not."""
    if ended.returncode != -signal.SIGABRT or _ABORTED not in ended.tail:
        return ""
    found = _UNHEARD.search(ended.tail)
    ranks = sorted(re.findall(r"(\d+),?\s", found[1].decode()) if found else [], key=int)
    if not ranks:
        who = "Rank 0, through which the ranks meet, is"
    else:
        who = f"Rank {ranks[0]} is" if len(ranks) == 1 else f"Ranks {', '.join(ranks)} are"
    return (
        f"{who} not heard of any more: the process has died or is stopped, or its host is cut off"
    )


def _last_lines(tail: bytes) -> str:
    lines = tail.decode(errors="replace").splitlines()[-_TAIL_LINES:]
    return "\n".join(["Its last lines:", *lines]) if lines else ""
