"""Building the image, if it is not there: from the base and this trcomp, or on top of an image."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from trcomp import flags
from trcomp.errors import Problem, SpecError
from trcomp.images import engine
from trcomp.images.context import Recipe

if TYPE_CHECKING:
    import docker

_SHOWN = 20
"""Lines of a build that failed."""
_SILENT_SECONDS = 3600
"""How long a step may print nothing: pip says nothing while it unpacks gigabytes."""
_ABSENT = ("manifest unknown", "manifest for", "pull access denied", "repository does not exist")
_UNREACHED = ("no such host", "dial tcp", "i/o timeout", "connection refused", "timeout exceeded")

Progress = Callable[[str], None]


def find_or_build(client: docker.DockerClient, *, gpu: bool, progress: Progress) -> str:
    """The image of this trcomp, built if the engine does not have it.

    Args:
        client: Of the engine, from `engine.connect`.
        gpu: Whether it needs CUDA's libraries.
        progress: Is told each line of a build.

    Returns:
        The image's name.

    Raises:
        BackendUnavailableError: It could not be built; the build's last lines end the message.
    """
    recipe = Recipe(gpu, args=configured())
    return find(client, recipe) or build(client, recipe, progress)


def configured() -> dict[str, str]:
    """The build arguments that the environment gives.

    Raises:
        SpecError: One of them is no NAME=VALUE.
    """
    return parsed(shlex.split(flags.BUILD_ARGS.get()), flags.BUILD_ARGS.name)


def parsed(
    texts: Iterable[str], origin: str, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Build arguments out of NAME=VALUE; a bare NAME has its value from the environment.

    Raises:
        SpecError: One has no value.
    """
    found, problems = {}, []
    for text in texts:
        name, equals, value = text.partition("=")
        if equals and name:
            found[name] = value
        elif environ is not None and name in environ:
            found[name] = environ[name]
        else:
            problems.append(Problem(origin, text, "NAME=VALUE is needed."))
    if problems:
        raise SpecError(problems)
    return found


def find(client: docker.DockerClient, recipe: Recipe) -> str | None:
    """The image's name if the engine has it, None otherwise."""
    from docker.errors import ImageNotFound

    with engine.told(f"look for {recipe.image}"):
        try:
            client.images.get(recipe.image)
        except ImageNotFound:
            return None
    return recipe.image


def build(
    client: docker.DockerClient, recipe: Recipe, progress: Progress, *, anew: bool = False
) -> str:
    """Build an image and give its name.

    Args:
        client: Of the engine.
        recipe: What it is made of.
        progress: Is told each line.
        anew: Whether bases are pulled and all steps run again.

    Raises:
        BackendUnavailableError: It could not be built.
    """
    purpose = f"build {recipe.image}"
    progress(f"Building {recipe.image}: minutes the first time.")
    with engine.told(purpose, _hint("", recipe)):
        lines = client.api.build(
            fileobj=recipe.archive(),
            custom_context=True,
            tag=recipe.image,
            buildargs=recipe.build_args,
            use_config_proxy=True,
            rm=True,
            forcerm=True,
            pull=anew,
            nocache=anew,
            decode=True,
            timeout=_SILENT_SECONDS,
        )
        _follow(lines, recipe, progress)
    return recipe.image


def _follow(lines: Iterable[dict[str, Any]], recipe: Recipe, progress: Progress) -> None:
    last: deque[str] = deque(maxlen=_SHOWN)
    error = ""
    # To its end, also after an error: the connection is then free.
    for line in lines:
        error = error or str(line.get("error") or "").strip()
        for text in to_lines(line):
            last.append(text)
            progress(text)
    if error:
        shown = "".join(f"\n  {text}" for text in last)
        text = f"{error}\nThe last lines:{shown}" if shown else error
        engine.refuse(f"build {recipe.image}", text, _hint(error, recipe))


def to_lines(message: Mapping[str, Any]) -> list[str]:
    """What a message of the engine says to a reader; bars of progress say nothing."""
    if "stream" in message:
        return [text for text in str(message["stream"]).splitlines() if text.strip()]
    if "status" in message and not message.get("progressDetail"):
        layer = f"{message['id']}: " if message.get("id") else ""
        return [f"{layer}{message['status']}"]
    return []


def _hint(error: str, recipe: Recipe) -> str:
    base = recipe.extends or recipe.args.get("BASE_IMAGE") or "the base image"
    if any(word in error.lower() for word in _ABSENT):
        return f"See that {base} exists and may be pulled; --base-image names another."
    if any(word in error.lower() for word in _UNREACHED):
        return (
            f"The engine reaches no registry: load {base} by `docker load`; on closed networks see "
            "docs/images.md."
        )
    return "What failed is above; build arguments such as PIP_INDEX_URL are in docs/images.md."
