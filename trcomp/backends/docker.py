"""The docker backend: a job is a directory and containers on this machine, one for each host."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from trcomp.backends import docker_objects, live_measurements, local_jobs
from trcomp.backends.base import Cursor, Plan, Stretch
from trcomp.backends.directory import prepare
from trcomp.backends.docker_files import place_data, write_package
from trcomp.backends.docker_image import with_image
from trcomp.backends.docker_plan import NAME, DockerPlan, plan, problems
from trcomp.backends.local_plan import LocalPlan
from trcomp.backends.record import LocalRecord
from trcomp.backends.s3_inputs import Object
from trcomp.errors import BackendUnavailableError
from trcomp.images.engine import connect

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
    """Find or build the image, make the job's directory, start the runner and return.

    Raises:
        SpecError: A job of that name exists.
        BackendUnavailableError: There is no engine or no image, or the directory cannot be written.
        KeyboardInterrupt: If it came in time, nothing runs; else the job does, and can be stopped.
    """
    assert isinstance(plan, DockerPlan)
    with closing(connect()) as client:
        complete = with_image(client, plan, lambda line: print(line, file=sys.stderr))

    def fill(plan: LocalPlan, objects: Sequence[Object]) -> None:
        prepare(plan, objects, place_data)
        write_package(plan)

    local_jobs.begin(complete, fill)


def describe(name: str) -> LocalRecord:
    """The job's record as true now; what a dead runner left in the engine is removed.

    Raises:
        JobNotFoundError: No job has that name.
        BackendUnavailableError: The runner has died, and the engine does not answer.
    """
    return local_jobs.describe(
        NAME, name, lambda found: docker_objects.remove_abandoned(found.name, found.directory)
    )


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
    found = describe(name)
    if found.status.ended:
        # The engine may have been away as the job ended.
        with suppress(BackendUnavailableError):
            docker_objects.remove_abandoned(name, found.directory)
    local_jobs.remove(found)


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
    """The records of this machine's jobs in containers, oldest first."""
    return local_jobs.records(NAME, _as_known)


def _as_known(name: str) -> LocalRecord:
    """The job's record; where that takes an engine and none answers, as it was written last."""
    try:
        return describe(name)
    except BackendUnavailableError:
        return local_jobs.describe(NAME, name, lambda found: False)
