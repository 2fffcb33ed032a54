"""What every backend shares: its protocol, the Plan it makes, the record it keeps of a job."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, Self

from pydantic import BaseModel, ConfigDict

from trcomp.contract import Contract, to_argv
from trcomp.env.executables import kept_at
from trcomp.errors import Problem
from trcomp.spec import JobSpec

Cursor = dict[str, int]
"""How far the log of each host has been read, in bytes; {} is the beginning."""

_SECRET = re.compile(
    r"(^|[_-])(secret|token|passw(or)?d|credentials?|(api|access|private)[_-]?key)([_-]|$)", re.I
)


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


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileCopy(_Frozen):
    """One file of the user's code and its place under the job's code directory."""

    source: Path
    destination: str
    size_bytes: int


class InputLink(_Frozen):
    """A channel's data on this machine."""

    channel: str
    source: Path


class HostPlan(_Frozen):
    """What one host of a job is started with."""

    name: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    """What the job adds to the environment of whoever submits it."""
    root: Path
    """The stand-in for /opt/ml."""
    contract: Contract


class Plan(_Frozen):
    """The real request of one job. Making it changes nothing; equal specs make equal plans."""

    backend: str
    job_name: str
    directory: Path
    hosts: tuple[HostPlan, ...]
    files: tuple[FileCopy, ...]
    inputs: tuple[InputLink, ...] = ()
    output_dir: Path
    checkpoint_dir: Path | None = None
    spec: JobSpec

    @property
    def handle(self) -> str:
        """The name by which any later process finds the job."""
        return f"{self.backend}://{self.job_name}"

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values, secrets masked, hyperparameters as they travel."""
        values: dict[str, Any] = self.model_dump(mode="json", exclude={"spec"})
        for host, entry in zip(self.hosts, values["hosts"], strict=True):
            entry["environment"] = masked(host.environment)
            parameters = masked(host.contract.hyperparameters)
            entry["contract"]["hyperparameters"] = {k: json.dumps(v) for k, v in parameters.items()}
        return values

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=2)

    def to_text(self) -> str:
        """The plan for a reader, secrets masked."""
        lines = [f"job        {self.handle}", f"directory  {self.directory}"]
        lines += [f"results    {self.output_dir}"]
        if self.checkpoint_dir is not None:
            lines.append(f"checkpoints  {self.checkpoint_dir}")
        settings = self.hosts[0].contract.settings
        if settings.compiler_enabled is not False:
            environ = os.environ | self.hosts[0].environment
            lines.append(f"cache      {settings.compiler_cache or kept_at(environ)}")
        size = sum(file.size_bytes for file in self.files)
        lines.append(f"code       {len(self.files)} files, {size} bytes")
        lines += [f"  {file.size_bytes:>10}  {file.destination}" for file in self.files]
        lines += [f"input      {link.channel} <- {link.source}" for link in self.inputs]
        for host in self.hosts:
            script = masked(host.contract.hyperparameters)
            lines += [f"host       {host.name}", f"  contract  {host.root}"]
            lines.append(f"  runs      {' '.join(host.argv)}")
            lines.append(
                f"  script    {host.contract.settings.program} {shlex.join(to_argv(script))}"
            )
            lines += [f"  env       {k}={v}" for k, v in masked(host.environment).items()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Plan({self.handle!r}, {len(self.hosts)} hosts, {len(self.files)} files)"

    __str__ = to_text


class Transition(_Frozen):
    """A job entered a state."""

    status: JobStatus
    time: datetime
    message: str = ""


class Failure(_Frozen):
    """Why a job failed: the earliest failure of all its workers."""

    message: str
    exit_code: int
    host: str | None = None
    rank: int | None = None
    traceback: str = ""
    last_lines: tuple[str, ...] = ()


class JobRecord(_Frozen):
    """What is known of a job, as any process may ask."""

    name: str
    backend: str
    directory: Path
    instance_type: str
    hosts: tuple[str, ...]
    transitions: tuple[Transition, ...]
    failure: Failure | None = None
    model: str | None = None
    """URI of model.tar.gz, None if the job saved no model (yet)."""
    output: str | None = None
    """URI of output.tar.gz."""

    @property
    def handle(self) -> str:
        """The name by which any later process finds the job."""
        return f"{self.backend}://{self.name}"

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


class Backend(Protocol):
    """What runs jobs. A backend is a module with these functions."""

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

    def report(self, name: str) -> dict[str, Any]:
        """What the job's workers measured: ``{"job", "totals", "ranks"}``."""

    def remove(self, name: str) -> None:
        """Delete all that is kept of a job; results at an output_path stay.

        Raises:
            JobRunningError: The job has not ended.
        """

    def records(self) -> Sequence[JobRecord]:
        """The records of the jobs this backend knows, oldest first."""


def masked(values: Any) -> dict[str, Any]:
    """Named values with those that look like secrets, by their names, replaced by ``***``."""
    return {k: "***" if _SECRET.search(k) and v else v for k, v in values.items()}
