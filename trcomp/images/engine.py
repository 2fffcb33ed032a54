"""A client of the container engine, Docker's or Podman's, and its refusals in trcomp's words."""

from __future__ import annotations

import grp
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from trcomp.errors import BackendUnavailableError

if TYPE_CHECKING:
    import docker

MIN_API = (1, 41)
"""Docker Engine 20.10 and Podman 4 have it: what trcomp is tested with."""
_START = (
    "Install Docker (https://docs.docker.com/engine/install/) or Podman and start it; set "
    "DOCKER_HOST if its socket is not a usual one. instance_type='local_process' needs no engine."
)
_FULL = "no space left on device"


def connect() -> docker.DockerClient:
    """A client of the engine that DOCKER_HOST names, or of the first of the usual sockets.

    The caller closes it. DOCKER_TLS_VERIFY and DOCKER_CERT_PATH count too, as for `docker`.

    Raises:
        BackendUnavailableError: There is no engine, it may not be used, or it is too old.
    """
    # Here, not above: only jobs in containers need the SDK.
    import docker
    from docker.errors import DockerException

    host = address()
    if host.startswith("unix://"):
        _try_socket(Path(host.removeprefix("unix://")))
    try:
        client = docker.from_env(environment={**os.environ, "DOCKER_HOST": host})
    except DockerException as error:
        message = f"The container engine at {host} does not answer: {error}"
        raise BackendUnavailableError(message, _START) from error
    try:
        _check_version(client, host)
    except BaseException:
        client.close()
        raise
    return client


def address(environ: Mapping[str, str] | None = None) -> str:
    """Where the engine is asked for: DOCKER_HOST, or the first of the usual sockets that exists."""
    environ = os.environ if environ is None else environ
    if host := environ.get("DOCKER_HOST"):
        return host
    own = environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    usual = ["/var/run/docker.sock", f"{own}/docker.sock", f"{own}/podman/podman.sock"]
    usual.append("/run/podman/podman.sock")
    found = [path for path in usual if _exists(path)]
    return f"unix://{(found or usual)[0]}"


@contextmanager
def told(purpose: str, hint: str | None = None) -> Iterator[None]:
    """Turn what the engine refuses into an error that says what to do.

    Args:
        purpose: What was to be done, after "could not".
        hint: The next step where the refusal itself suggests none.

    Raises:
        BackendUnavailableError: Something was refused.
    """
    import requests
    from docker.errors import APIError, DockerException

    try:
        yield
    except APIError as error:
        refuse(purpose, str(error.explanation or error), hint, error)
    except requests.exceptions.ConnectionError as error:
        message = f"Could not {purpose}: the container engine went away: {error}"
        raise BackendUnavailableError(message, "See that it runs: `docker version`.") from error
    except (DockerException, requests.exceptions.RequestException) as error:
        raise BackendUnavailableError(f"Could not {purpose}: {error}", hint) from error


def refuse(
    purpose: str, text: str, hint: str | None = None, cause: BaseException | None = None
) -> NoReturn:
    """Raise what the engine said, with the next step.

    Raises:
        BackendUnavailableError: Always.
    """
    if _FULL in text:
        hint = "Free space: `docker system df` shows what takes it, `docker system prune` frees it."
    raise BackendUnavailableError(f"Could not {purpose}: {text}", hint) from cause


def _try_socket(path: Path) -> None:
    """Connect to a socket: the SDK's own errors do not say what is wrong with it."""
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.connect(str(path))
        except PermissionError as error:
            message = f"No permission to use the container engine at {path}"
            raise BackendUnavailableError(f"{message}.", _permission(path)) from error
        except OSError as error:
            what = error.strerror or str(error)
            message = f"No container engine answers at {path}: {what}."
            raise BackendUnavailableError(message, _START) from error


def _permission(path: Path) -> str:
    rootless = "Or run a rootless engine: its socket is your own."
    try:
        gid = path.stat().st_gid
    except OSError:
        return f"Ask whoever runs the engine for access to {path.parent}. {rootless}"
    try:
        group = grp.getgrgid(gid).gr_name
    except KeyError:
        group = str(gid)
    return (
        f"The socket is for the group {group!r}: `sudo usermod -aG {group} $USER`, then log in "
        f"anew. Who is in it can become root on this machine. {rootless}"
    )


def _check_version(client: Any, host: str) -> None:
    with told(f"ask the container engine at {host} for its version"):
        answer = client.version(api_version=False)
    # The SDK speaks older versions than its engine's newest: the engine's own word counts.
    version = str(answer.get("ApiVersion", "0"))
    numbers = tuple(int(part) for part in version.split(".") if part.isdigit())
    if numbers < MIN_API:
        raise BackendUnavailableError(
            f"The container engine at {host} is too old: {answer.get('Version', 'unknown')} speaks "
            f"API {version}, and {'.'.join(map(str, MIN_API))} is needed.",
            "Docker Engine 20.10 or newer, or Podman 4 or newer, has it.",
        )


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # A directory above it may not be looked into.
        return True
