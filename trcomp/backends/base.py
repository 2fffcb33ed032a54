"""What every backend shares: its protocol, the Plan it makes, the record it keeps of a job."""

from __future__ import annotations

import json
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict

from trcomp.contract import to_argv
from trcomp.errors import Problem
from trcomp.spec import JobSpec

Cursor = dict[str, Any]
"""How far each of a job's logs has been read, as its backend counts; {} is the beginning."""

_SECRET = re.compile(
    r"passw(or)?d|passphrase|"
    r"(^|[_-])(secret|token|credentials?|(api|access|private)[_-]?key)([_-]|$)|[_-]pwd$",
    re.I,
)
_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")


class JobStatus(StrEnum):
    """The states of a job, in order; the last three are final."""

    PREPARING = "Preparing"
    STARTING = "Starting"
    TRAINING = "Training"
    STOPPING = "Stopping"
    UPLOADING = "Uploading"
    COMPLETED = "Completed"
    FAILED = "Failed"
    STOPPED = "Stopped"

    @property
    def ended(self) -> bool:
        """Whether the job will not change any more."""
        return self in {JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.STOPPED}


class Frozen(BaseModel):
    """A value that is not changed once it is made, and no more than it says."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FileCopy(Frozen):
    """One file of the user's code and its place under the job's code directory."""

    source: Path
    destination: str
    size_bytes: int


class Plan(Frozen, ABC):
    """The real request of one job. Making it changes nothing; equal specs make equal plans."""

    backend: str
    job_name: str
    files: tuple[FileCopy, ...]
    left_behind: tuple[str, ...] = ()
    """What of source_dir is no part of the code."""
    spec: JobSpec

    @property
    def handle(self) -> str:
        """The name by which any later process finds the job."""
        return f"{self.backend}://{self.job_name}"

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values, secrets masked, hyperparameters as they travel."""

    @abstractmethod
    def to_text(self) -> str:
        """The plan for a reader, secrets masked."""

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=2)

    def file_lines(self) -> list[str]:
        """The files of the code, or where it comes from, for a reader."""
        git = self.spec.git_config
        if git is not None:
            version = git.commit or git.branch or "its default branch"
            return [f"code       {git.repo} at {version}, cloned as the job is submitted"]
        if self.spec.source_uri is not None:
            return [f"code       {self.spec.source_uri}, as it is there"]
        size = sum(file.size_bytes for file in self.files)
        lines = [f"code       {len(self.files)} files, {size} bytes"]
        lines += [f"  {file.size_bytes:>10}  {file.destination}" for file in self.files]
        return lines + [f"  {'left out':>10}  {name}" for name in self.left_behind]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.handle!r}, {len(self.files)} files)"

    def __str__(self) -> str:
        return self.to_text()


class Transition(Frozen):
    """A job entered a state."""

    status: JobStatus
    time: AwareDatetime
    message: str = ""


class Failure(Frozen):
    """Why a job failed: the earliest failure of all its workers."""

    message: str
    exit_code: int
    host: str | None = None
    rank: int | None = None
    traceback: str = ""
    last_lines: tuple[str, ...] = ()
    no_capacity: bool = False
    """Whether there were no instances to train on: another try, or another type, may succeed."""


class JobRecord(Frozen, ABC):
    """What is known of a job, as any process may ask."""

    name: str
    backend: str
    instance_type: str
    hosts: tuple[str, ...]
    transitions: tuple[Transition, ...]
    failure: Failure | None = None
    over: str | None = None
    """The limit at which the job was stopped, ``max_run`` or ``max_wait``."""
    model: str | None = None
    """URI of model.tar.gz, None if the job saved no model (yet)."""
    output: str | None = None
    """URI of output.tar.gz."""
    metric_definitions: dict[str, str] = {}
    """Of each metric that its lines hold, the pattern whose first group is a value of it."""

    @property
    def handle(self) -> str:
        """The name by which any later process finds the job."""
        return f"{self.backend}://{self.name}"

    @property
    def typed(self) -> str:
        """What a reader types for the job: the handle, or less where that is enough."""
        return self.handle

    @property
    @abstractmethod
    def place(self) -> str:
        """Where a reader finds all there is of the job: a directory or a link."""

    @property
    def report_place(self) -> str | None:
        """Where a reader finds the report of a job that has ended, if it is a file."""
        return None

    @property
    def links(self) -> dict[str, str]:
        """Pages about the job, by what they show."""
        return {}

    def data_file(self, host: str, name: str) -> str | None:
        """URI of what a host left in output/data under a name, if it lies on this machine."""
        return None

    def cost(self, now: datetime) -> str | None:
        """What the job has cost until now, for a reader; None where that is not known."""
        return None

    def details(self, now: datetime) -> list[tuple[str, str]]:
        """What else a reader wants to know of the job, by name: on what it runs, what it costs."""
        return []

    @property
    def status(self) -> JobStatus:
        """The state entered last."""
        return self.transitions[-1].status

    def entered(self, status: JobStatus, message: str = "", **changes: Any) -> Self:
        """This record with one more transition, now, and other fields changed."""
        step = Transition(status=status, time=datetime.now(UTC), message=message)
        return self.model_copy(update={"transitions": (*self.transitions, step), **changes})

    def failed(self, failure: Failure) -> Self:
        """This record of a job that has failed."""
        return self.entered(JobStatus.FAILED, failure.message, failure=failure)


class Stretch(BaseModel):
    """What a rank measured over some steps: a line of its metrics.jsonl."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)

    host: str = ""
    rank: int
    time: float
    """Seconds since the epoch."""
    step: int
    """Steps so far."""
    steps: int
    """Steps of the stretch."""
    step_seconds: float | None = None
    samples_per_second: float | None = None
    compiles: int = 0
    loads: int = 0
    input_wait_seconds: float = 0.0
    memory_bytes: int = 0
    total_steps: int | None = None
    """How many the script is to make, where that is known."""


class Backend(Protocol):
    """What runs jobs. A backend is a module with these functions."""

    POLL_SECONDS: float
    """How long to wait before a job is looked at again."""
    REMOTE: bool
    """Whether jobs run elsewhere, so that who stops watching one may want it to go on."""

    def problems(self, spec: JobSpec) -> list[Problem]:
        """What this backend cannot do of a spec, beyond what every job must obey."""

    def plan(self, spec: JobSpec) -> Plan:
        """The real request. Pure but for looking at the user's files.

        Raises:
            SpecError: Holds everything that `problems` finds.
        """

    def submit(self, plan: Plan) -> None:
        """Start the job and return; it goes on without this process.

        Raises:
            SpecError: A job of that name exists.
        """

    def describe(self, name: str) -> JobRecord:
        """The job's record.

        Raises:
            JobNotFoundError: No job has that name.
        """

    def read_logs(self, name: str, cursor: Cursor, final: bool) -> tuple[list[str], Cursor]:
        """The next log lines after a cursor, and their cursor; none if there are none yet.

        Args:
            name: The job.
            cursor: What an earlier call gave, {} for the beginning.
            final: The job has ended: a last line without its end is a line.
        """

    def stop(self, name: str) -> None:
        """Ask the job to stop; a second call kills it. Nothing happens to a job that has ended."""

    def download(self, name: str, directory: Path, which: Collection[str]) -> list[Path]:
        """Write the job's results into a directory; gives the files written.

        Args:
            name: The job.
            directory: Where they go; made if it is not there.
            which: "model", "output", or both.
        """

    def report(self, name: str) -> dict[str, Any]:
        """What the job's workers measured: ``{"job", "totals", "ranks"}``."""

    def live(self, name: str) -> Sequence[Stretch]:
        """What each rank has measured lately, oldest first; nothing where that is not to be had."""

    def remove(self, name: str) -> None:
        """Delete all that is kept of a job; results at an output_path stay.

        Raises:
            JobRunningError: The job has not ended.
        """

    def records(self) -> Sequence[JobRecord]:
        """The records of the jobs this backend knows, oldest first."""


def with_host(host: str, line: str) -> str:
    """A line of a job's log with its host: in one prefix with its rank, if it has one."""
    own = line.startswith(("[rank ", "[trcomp] "))
    return f"[{host} {line[1:]}" if own else f"[{host}] {line}"


def shown_script(spec: JobSpec) -> str:
    """A job's script and its arguments for a reader, secrets masked."""
    arguments = [*to_argv(masked(spec.hyperparameters)), *masked_arguments(spec.arguments)]
    return shlex.join([spec.program, *arguments])


def masked_arguments(arguments: Sequence[str]) -> list[str]:
    """A script's arguments with what looks like a secret, by its option, replaced by ``***``."""
    shown, hidden = [], False
    for text in arguments:
        if text.startswith("-"):
            name, separator, _ = text.partition("=")
            secret = _SECRET.search(name.lstrip("-")) is not None
            hidden = secret and not separator
            shown.append(f"{name}=***" if secret and separator else text)
        else:
            shown.append("***" if hidden else text)
    return shown


def masked(values: Any) -> dict[str, Any]:
    """Named values with those that look like secrets, by their names, replaced by ``***``.

    Of a URL with a password, as proxies have it, that alone is replaced.
    """
    return {
        k: "***" if _SECRET.search(k) and v else _without_password(v) for k, v in values.items()
    }


def _without_password(value: Any) -> Any:
    return _PASSWORD.sub(r"\1***@", value) if isinstance(value, str) else value
