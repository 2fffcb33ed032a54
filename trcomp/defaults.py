"""The words of jobs that a project keeps in a file, with profiles, and the environment over them.

    trcomp.toml                     or, in pyproject.toml, [tool.trcomp]
        role = "arn:…"
        [profiles.large]                           [tool.trcomp.profiles.large]
        instance_type = "ml.p4d.24xlarge"

Weakest to strongest: the file's own words, those of the profile, TRCOMP_WORD_ROLE and its kin in
the environment. Whoever runs a job says the rest, and wins.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trcomp import flags
from trcomp.errors import Problem, SpecError, nearest

FILE = "trcomp.toml"
_PROJECT = "pyproject.toml"
_PLACES = ("source_dir", "output_path", "checkpoint_s3_uri")
"""Words whose paths are meant from where the file lies."""


@dataclass(frozen=True)
class Default:
    """A word's value, and where it comes from."""

    value: Any
    origin: str


def found(
    directory: Path, environ: Mapping[str, str], profile: str | None = None
) -> dict[str, Default]:
    """Each word that is set, from the nearest file at or above a directory and the environment.

    Args:
        directory: Where to look first.
        environ: The environment.
        profile: Which profile; None: the one that TRCOMP_PROFILE names, if it names one.

    Raises:
        SpecError: The file is broken, or has no such profile.
    """
    chosen = profile or flags.PROFILE.get(environ) or None
    place, origin, content = _nearest(directory)
    profiles = content.pop("profiles", {})
    words = _words(content, origin, place)
    if chosen is not None:
        if not isinstance(profiles.get(chosen), dict):
            near = nearest(chosen, list(profiles))
            allowed = f"{origin or 'no file at or above ' + str(directory)} has {_names(profiles)}."
            raise SpecError([Problem("profile", chosen, allowed, near)])
        words |= _words(profiles[chosen], f"{origin}, profile {chosen}", place)
    for name, text in environ.items():
        if name.startswith(flags.WORD_PREFIX):
            word = name.removeprefix(flags.WORD_PREFIX).lower()
            words[word] = Default(value(text), name)
    return words


def value(text: str) -> Any:
    """A word's value: JSON, or else text that stands for itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _nearest(directory: Path) -> tuple[Path | None, str, dict[str, Any]]:
    """The directory, name and words of the nearest file that has some."""
    for place in (directory, *directory.parents):
        path = place / FILE
        if path.is_file():
            return place, str(path), _read(path)
        path = place / _PROJECT
        if path.is_file():
            words = _read(path).get("tool", {}).get("trcomp")
            if isinstance(words, dict):
                return place, f"{path} [tool.trcomp]", words
    return None, "", {}


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError([Problem(path.name, str(path), f"it cannot be read: {error}.")]) from error


def _words(content: Mapping[str, Any], origin: str, place: Path | None) -> dict[str, Default]:
    words = {}
    for word, given in content.items():
        if word in _PLACES and isinstance(given, str) and "://" not in given and place is not None:
            given = str(place / given)
        words[word] = Default(given, origin)
    return words


def _names(profiles: Mapping[str, Any]) -> str:
    return f"the profiles {', '.join(profiles)}" if profiles else "no profiles"
