"""Pushing an image to a registry, through the engine's own interface: no login stays on a disk."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from trcomp import flags
from trcomp.errors import BackendUnavailableError, Problem, SpecError
from trcomp.images import engine
from trcomp.images.build import Progress, to_lines

if TYPE_CHECKING:
    import docker

_DENIED = ("denied", "unauthorized", "no basic auth", "authentication required", "forbidden")
_ABSENT = ("name unknown", "not found", "does not exist", "name_unknown")
_KEPT = "immutable"
_NAME = re.compile(r"(?P<name>[^@\s]*?[^@\s:/])(?::(?P<tag>[\w][\w.-]{0,127}))?")


def push(
    client: docker.DockerClient,
    image: str,
    to: str,
    progress: Progress,
    auth: Mapping[str, str] | None = None,
) -> str:
    """Push an image of the engine under a name.

    Args:
        client: Of the engine.
        image: The image there: a name, an id or a digest.
        to: Registry, repository and tag.
        progress: Is told what happens.
        auth: ``username`` and ``password``; None: the environment's, then Docker's own.

    Returns:
        The name by which exactly this image is pulled: ``REGISTRY/REPOSITORY@sha256:…``.

    Raises:
        SpecError: The name is none.
        BackendUnavailableError: There is no such image, or the registry refuses.
    """
    from docker.errors import ImageNotFound

    repository, tag = _split(to)
    purpose = f"push {to}"
    progress(f"Pushing {image} to {to}.")
    with engine.told(purpose):
        try:
            found = client.images.get(image)
        except ImageNotFound as error:
            message = f"Could not {purpose}: the engine has no image {image!r}."
            raise BackendUnavailableError(message, "`trcomp build` builds one.") from error
        found.tag(repository, tag)
        own = dict(auth) if auth is not None else _from_environment()
        lines = client.api.push(repository, tag=tag, stream=True, decode=True, auth_config=own)
        digest = _follow(lines, to, progress)
    return f"{repository}@{digest}"


def _split(to: str) -> tuple[str, str]:
    match = _NAME.fullmatch(to)
    if match is None:
        allowed = "a name to push to is REGISTRY/REPOSITORY:TAG, without a digest."
        raise SpecError([Problem("--to", to, allowed)])
    return match["name"], match["tag"] or "latest"


def _from_environment() -> dict[str, str] | None:
    """None: the SDK looks into Docker's configuration and its keychains."""
    name, password = flags.REGISTRY_USERNAME.get(), flags.REGISTRY_PASSWORD.get()
    return {"username": name, "password": password} if name and password else None


def _follow(lines: Iterable[dict[str, Any]], to: str, progress: Progress) -> str:
    digest = error = ""
    # To its end, also after an error: the connection is then free.
    for line in lines:
        error = error or str(line.get("error") or "")
        digest = (line.get("aux") or {}).get("Digest") or digest
        for text in to_lines(line):
            progress(text)
            # Podman says it in words alone.
            told = re.search(r"sha256:[0-9a-f]{64}", text)
            digest = digest or (told[0] if told else "")
    if error:
        engine.refuse(f"push {to}", error, _hint(error.lower(), to))
    return digest


def _hint(error: str, to: str) -> str | None:
    if any(word in error for word in _DENIED):
        name, password = flags.REGISTRY_USERNAME.name, flags.REGISTRY_PASSWORD.name
        return (
            f"Sign in to {to.split('/')[0]}: set {name} and {password}, or `docker login`; Amazon "
            "ECR takes AWS credentials, see `trcomp iam-policy --for push`."
        )
    if any(word in error for word in _ABSENT):
        return "The registry has no such repository: create it there, or see how it is spelt."
    if _KEPT in error:
        return "The repository keeps its tags as they are: choose another tag."
    return None
