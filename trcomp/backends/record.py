"""job.json: the record of one job on this machine, written whole or not at all."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from trcomp import reserve
from trcomp.backends.base import Failure, JobRecord
from trcomp.contract import Paths
from trcomp.errors import InternalError

FILE = "job.json"
PAGE = "report.html"
"""What a job's measurements look like, for a browser."""


class LocalRecord(JobRecord):
    """A job's record with the process that runs it."""

    directory: Path
    runner_pid: int | None = None
    runner_start: int | None = None
    """Clock ticks since boot: with the pid it names one process, whatever pids are used again."""

    @property
    def typed(self) -> str:
        """The job's name where that is enough: a handle without a backend means processes."""
        return self.name if self.backend == "process" else self.handle

    @property
    def place(self) -> str:
        """The job's directory."""
        return str(self.directory)

    @property
    def report_place(self) -> str | None:
        """The page in the job's directory, if its runner came to write it."""
        page = self.directory / PAGE
        return str(page) if page.exists() else None

    def data_file(self, host: str, name: str) -> str | None:
        """In the host's own tree, which stays until the job is removed."""
        return (Paths(self.directory / "hosts" / host / "ml").output_data / name).as_uri()

    def cost(self, now: datetime) -> str:
        """Nobody is paid for this machine's time."""
        return "nothing: it runs on this machine"

    def abandoned(self) -> LocalRecord:
        """The record of a job whose runner died before it could write how the job ended."""
        message = "The job's runner died; the machine restarted, or it was killed."
        return self.failed(Failure(message=message, exit_code=70))

    @property
    def runner_alive(self) -> bool:
        """Whether the process that runs the job still exists."""
        return self.runner_pid is not None and start_ticks(self.runner_pid) == self.runner_start


def write(directory: Path, record: LocalRecord) -> None:
    """Replace the record in one step: a reader sees the old or the new one."""
    text = record.model_dump_json(indent=2) + "\n"
    try:
        _replace(directory, text)
    except OSError as error:
        if error.errno not in reserve.FULL:
            raise
        # A job that filled the disk must still be able to say so.
        reserve.give_back(directory)
        _replace(directory, text)
    if record.status.ended:
        reserve.give_back(directory)


def _replace(directory: Path, text: str) -> None:
    temporary = directory / f".{FILE}.{os.getpid()}"
    write_private(temporary, text)
    os.replace(temporary, directory / FILE)


def write_private(path: Path, text: str) -> None:
    """Write a file that its user alone may read, whatever directory it lies in."""

    def opened(name: str, mode: int) -> int:
        return os.open(name, mode, 0o600)

    with open(path, "w", encoding="utf-8", opener=opened) as file:
        file.write(text)


def read(directory: Path) -> LocalRecord | None:
    """The record in a job's directory; None if there is no job.

    Raises:
        InternalError: The file is there but is no record.
    """
    try:
        text = (directory / FILE).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        found = LocalRecord.model_validate_json(text)
        fault = "" if found.transitions else "it has no states"
    except ValidationError as error:
        fault = f"{error.error_count()} fields are wrong"
    if fault:
        raise InternalError(
            f"{directory / FILE} is no job record: {fault}.",
            f"Another version of trcomp may have written it; remove {directory}.",
        )
    return found


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may hold blanks and parentheses itself: proc(5).
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else int(fields[19])
