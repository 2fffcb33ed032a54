"""Job: a handle on one job, which any process may hold at any time."""

from __future__ import annotations

import time
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from trcomp import backends, job_page
from trcomp.backends import sessions
from trcomp.backends.base import Backend, Cursor, JobRecord, JobStatus, Stretch
from trcomp.errors import (
    JobCapacityError,
    JobFailedError,
    JobLimitError,
    JobStoppedError,
    JobTimeoutError,
)
from trcomp.line_metrics import LineMetrics


class Job:
    """A submitted job, by its handle ``backend://name``.

    Everything asked of it is looked up when asked: the object holds no state, so a handle in
    another process, today or next week, is as good as this one.
    """

    def __init__(self, handle: str, session: Any = None) -> None:
        """The job of a handle; AWS is reached through a boto3 session, or as it is configured."""
        self._backend_name, self.name = backends.parse_handle(handle)
        self._session = session

    @classmethod
    def attach(cls, handle: str) -> Self:
        """The job of a handle, ``process://NAME`` or just ``NAME``.

        Raises:
            JobNotFoundError: There is no such job.
            BackendUnavailableError: There is no such backend.
        """
        job = cls(handle)
        job.record()
        return job

    @property
    def handle(self) -> str:
        """The text by which `attach` finds the job again."""
        return f"{self._backend_name}://{self.name}"

    @property
    def poll_seconds(self) -> float:
        """How long to wait before the job is looked at again: a service wants fewer looks."""
        return self._backend.POLL_SECONDS

    @property
    def remote(self) -> bool:
        """Whether the job runs elsewhere than on this machine."""
        return self._backend.REMOTE

    def record(self) -> JobRecord:
        """All that is known of the job now."""
        return self._backend.describe(self.name)

    def describe(self) -> dict[str, Any]:
        """`record` as JSON values: states with their times (UTC), places, cause of a failure."""
        record = self.record()
        values: dict[str, Any] = record.model_dump(mode="json")
        own = {"handle": record.handle, "status": str(record.status), "links": record.links}
        return own | values

    def status(self) -> JobStatus:
        """The job's state now. It compares equal to its text: ``job.status() == "Completed"``."""
        return self.record().status

    def logs(self, follow: bool = False) -> Iterator[str]:
        """The lines that the job's workers printed, each with its rank.

        Args:
            follow: Go on as lines appear, until the job has ended.
        """
        cursor: Cursor = {}
        while True:
            # Asked before reading: what the job printed before it ended is then all there.
            ended = self.status().ended
            lines, cursor = self.read_logs(cursor, final=ended or not follow)
            yield from lines
            if not lines:
                if ended or not follow:
                    return
                time.sleep(self.poll_seconds)

    def read_logs(self, cursor: Cursor, final: bool = False) -> tuple[list[str], Cursor]:
        """The next lines after a cursor ({} is the beginning) and the cursor after them."""
        return self._backend.read_logs(self.name, cursor, final)

    def metrics(self) -> dict[str, list[float]]:
        """The values of each of the job's metric_definitions in its lines so far, in order."""
        found = LineMetrics(self.record().metric_definitions)
        if found.unreadable:
            names = ", ".join(found.unreadable)
            text = f"{names}: the pattern is none of Python's; CloudWatch has what it finds."
            warnings.warn(text, stacklevel=2)
        found.read(self.logs())
        return found.values

    def download(
        self, directory: str | Path, which: Collection[str] = ("model", "output")
    ) -> list[Path]:
        """Write the job's model.tar.gz and output.tar.gz into a directory, as far as there are any.

        Returns:
            The files written.
        """
        return self._backend.download(self.name, Path(directory), which)

    def wait(self, timeout: float | None = None) -> JobStatus:
        """Wait until the job has ended.

        Args:
            timeout: Seconds; None waits for ever. The job goes on when it runs out.

        Returns:
            ``Completed``.

        Raises:
            JobFailedError: The job failed.
            JobStoppedError: The job was stopped.
            JobTimeoutError: The time ran out first.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (record := self.record()).status.ended:
            left = self.poll_seconds if deadline is None else deadline - time.monotonic()
            if left <= 0:
                typed = record.typed
                raise JobTimeoutError(
                    f"{self.handle} is {record.status} after {timeout:g} s; it goes on.",
                    self.handle,
                    f"`trcomp status {typed}` and `trcomp logs -f {typed}` follow it.",
                )
            time.sleep(min(left, self.poll_seconds))
        raise_for_outcome(record)
        return record.status

    def stop(self) -> None:
        """Ask the job to stop and return; `wait` waits for its end.

        Workers get SIGTERM, a grace, then SIGKILL; a second call kills them at once. Nothing
        happens to a job that has ended.
        """
        self._backend.stop(self.name)

    def remove(self) -> None:
        """Delete all that is kept of the job; results at an output_path stay.

        Raises:
            JobRunningError: The job has not ended.
        """
        self._backend.remove(self.name)

    def report(self) -> dict[str, Any]:
        """What the workers measured: ``{"job", "totals", "ranks"}``, each rank as its job ended."""
        return self._backend.report(self.name)

    def live(self) -> Sequence[Stretch]:
        """What each rank has measured lately, oldest first: of a job on this machine, as it runs.

        A job elsewhere leaves it with its results.
        """
        return self._backend.live(self.name)

    def page(self) -> str:
        """The job as one HTML page that needs nothing else: what `report`, record and lines say."""
        return job_page.page(self.record(), self.report(), self.logs())

    @property
    def _backend(self) -> Backend:
        return sessions.bound(backends.named(self._backend_name), self._session)

    def __repr__(self) -> str:
        return f"Job({self.handle!r})"


def raise_for_outcome(record: JobRecord) -> None:
    """Raise what a job's end means, nothing for a completed one.

    Raises:
        JobFailedError: With the worker's traceback, its rank, host, last lines and exit code.
        JobCapacityError: There were no instances.
        JobStoppedError: The job was stopped.
        JobLimitError: It was stopped at a limit of its own.
    """
    if record.over is not None:
        raise JobLimitError(
            f"{record.handle} was stopped at its {record.over}.",
            record.handle,
            f"Give a larger {record.over}; checkpoints, if it kept any, let it go on from there.",
        )
    if record.status is JobStatus.STOPPED:
        raise JobStoppedError(
            f"{record.handle} was stopped.",
            record.handle,
            f"`trcomp logs {record.typed}` shows how far it came; checkpoints, if it kept any, "
            "let another job go on from there.",
        )
    failure = record.failure
    if failure is None:
        return
    who = "the job" if failure.host is None else failure.host
    if failure.rank is not None:
        who = f"rank {failure.rank} on {who}"
    text = f"{record.handle}: {who} failed, exit code {failure.exit_code}: {failure.message}"
    # Where there is no traceback the last lines are all there is to see.
    detail = failure.traceback or "\n".join(failure.last_lines)
    log = f", {record.links['log']} its log" if "log" in record.links else ""
    kind = JobCapacityError if failure.no_capacity else JobFailedError
    raise kind(
        f"{text}\n\n{detail}\n" if detail else text,
        record.handle,
        exit_code=failure.exit_code,
        host=failure.host,
        rank=failure.rank,
        traceback=failure.traceback,
        last_lines=failure.last_lines,
        hint=f"`trcomp logs {record.typed}` shows all lines; {record.place} holds the job{log}.",
    )
