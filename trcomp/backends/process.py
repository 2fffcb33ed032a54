"""The process backend: a job is a directory and plain processes on this machine."""

from __future__ import annotations

from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trcomp.backends import live_measurements, local_jobs
from trcomp.backends.base import Cursor, Plan, Stretch
from trcomp.backends.directory import link_data, prepare
from trcomp.backends.local_plan import LocalPlan
from trcomp.backends.process_plan import NAME, plan, problems
from trcomp.backends.record import LocalRecord
from trcomp.errors import MissingExtraError
from trcomp.spec import JobSpec

__all__ = [
    "POLL_SECONDS",
    "REMOTE",
    "describe",
    "download",
    "live",
    "plan",
    "problems",
    "read_logs",
    "records",
    "remove",
    "report",
    "stop",
    "submit",
]

POLL_SECONDS = 0.1
REMOTE = False


def submit(plan: Plan) -> None:
    """Make the job's directory, copy the code, start the runner and return.

    Raises:
        SpecError: A job of that name exists.
        MissingExtraError: The job is to train through XLA, and torch or jax is not installed.
        BackendUnavailableError: The directory cannot be written, or S3 cannot be read.
        KeyboardInterrupt: If it came in time, nothing runs; else the job does, and can be stopped.
    """
    assert isinstance(plan, LocalPlan)
    _require_packages(plan.spec)
    local_jobs.begin(plan, lambda plan, objects: prepare(plan, objects, link_data))


def describe(name: str) -> LocalRecord:
    """The job's record as true now.

    Raises:
        JobNotFoundError: No job has that name.
    """
    return local_jobs.describe(NAME, name)


def read_logs(name: str, cursor: Cursor, final: bool) -> tuple[list[str], Cursor]:
    """The whole lines after a cursor, host by host; with several hosts each line names its host."""
    return local_jobs.read_logs(describe(name), cursor, final)


def stop(name: str) -> None:
    """Ask the job to stop; a second call kills it. A job that has ended stays so."""
    local_jobs.stop(lambda: describe(name))


def remove(name: str) -> None:
    """Delete the directory of a job that has ended, with all that it holds.

    Raises:
        JobNotFoundError: No job has that name.
        JobRunningError: The job has not ended.
        BackendUnavailableError: Something cannot be deleted.
    """
    local_jobs.remove(describe(name))


def report(name: str) -> dict[str, Any]:
    """What the job's workers have measured so far."""
    return local_jobs.report(describe(name))


def live(name: str) -> list[Stretch]:
    """What each rank has measured lately, oldest first."""
    return live_measurements.latest(describe(name))


def download(name: str, directory: Path, which: Collection[str]) -> list[Path]:
    """Copy the job's results into a directory."""
    return local_jobs.download(describe(name), directory, which)


def records() -> list[LocalRecord]:
    """The records of this machine's jobs of processes, oldest first."""
    return local_jobs.records(NAME, describe)


def _require_packages(spec: JobSpec) -> None:
    """Refuse what workers, which run on this very Python, could not import."""
    if spec.compiler_config:
        for package in ("torch", "jax"):
            if find_spec(package) is None:
                raise MissingExtraError(package, "runtime", "Training through XLA on this machine")
