"""What a job has in the container engine: found by its labels, ended, its lines saved, removed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from trcomp.backends.docker_logs import save_lines
from trcomp.errors import BackendUnavailableError
from trcomp.images.engine import connect, told

_LABEL = "trcomp"
_ATTENDED = ".attended"


def labels(job_name: str, directory: Path, host: str | None = None) -> dict[str, str]:
    """The labels of what belongs to a job; jobs of one name may be kept in several places."""
    own = {f"{_LABEL}.job": job_name, f"{_LABEL}.directory": str(directory)}
    return own if host is None else own | {f"{_LABEL}.host": host}


def containers(client: Any, job_name: str, directory: Path) -> list[Any]:
    """The job's containers, whether they run or not."""
    found = client.containers.list(all=True, filters=_filters(job_name, directory))
    return list(found)


def networks(client: Any, job_name: str, directory: Path) -> list[Any]:
    """The network that was made for the job, if it is still there."""
    return list(client.networks.list(filters=_filters(job_name, directory)))


def remove(client: Any, job_name: str, directory: Path) -> None:
    """End and remove the job's containers, with their last lines saved, and its network.

    Raises:
        BackendUnavailableError: The engine refuses.
    """
    from docker.errors import NotFound

    with told(f"remove the containers of {job_name}"):
        for container in containers(client, job_name, directory):
            with suppress(NotFound):
                _end(container, directory)
        for network in networks(client, job_name, directory):
            with suppress(NotFound):
                network.remove()


@contextmanager
def attended(directory: Path) -> Iterator[None]:
    """Show, while it is entered, that a process sees to a container of the job."""
    with _locked(directory, fcntl.LOCK_SH):
        yield


def remove_abandoned(job_name: str, directory: Path) -> bool:
    """End what is left of a job whose runner has died.

    Returns:
        False while processes of the job still see to its end.

    Raises:
        BackendUnavailableError: There may be something left, and the engine does not answer.
    """
    try:
        with _locked(directory, fcntl.LOCK_EX | fcntl.LOCK_NB), closing(connect()) as client:
            remove(client, job_name, directory)
    except BlockingIOError:
        return False
    return True


def _end(container: Any, directory: Path) -> None:
    from docker.errors import APIError

    with suppress(APIError):  # It has ended already.
        container.kill()
    host = container.labels.get(f"{_LABEL}.host", "")
    with suppress(OSError, BackendUnavailableError):
        save_lines(container, directory / "logs" / f"{host}.log")
    container.remove(force=True, v=True)


def _filters(job_name: str, directory: Path) -> dict[str, list[str]]:
    return {"label": [f"{name}={value}" for name, value in labels(job_name, directory).items()]}


@contextmanager
def _locked(directory: Path, operation: int) -> Iterator[None]:
    descriptor = os.open(directory / _ATTENDED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)
