"""Which backend runs a job: a literal table, each module imported when first needed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from trcomp.errors import BackendUnavailableError, JobNotFoundError, Problem, SpecError

if TYPE_CHECKING:
    from trcomp.backends.base import Backend
    from trcomp.spec import JobSpec

BACKENDS = {
    "process": "trcomp.backends.process",
    "sagemaker": "trcomp.backends.sagemaker",
}

_LATER = {
    "local": "docker",
    "local_gpu": "docker",
}
"""Instance types whose backend does not exist yet."""


def instance_type_problems(instance_type: str) -> list[Problem]:
    """What is wrong with an instance type here and now: its backend does not exist yet."""
    if instance_type not in _LATER:
        return []
    backend = _LATER[instance_type]
    allowed = f"the {backend} backend is not supported yet; 'local_process' runs on this machine."
    return [Problem("instance_type", instance_type, allowed)]


def problems(spec: JobSpec) -> list[Problem]:
    """What the backend of a spec's instance type cannot do, that there is none included."""
    found = instance_type_problems(spec.instance_type)
    return found + named(_name(spec.instance_type)).problems(spec)


def for_instance_type(instance_type: str) -> Backend:
    """The backend that runs jobs of an instance type.

    Raises:
        SpecError: Its backend does not exist yet.
    """
    found = instance_type_problems(instance_type)
    if found:
        raise SpecError(found)
    return named(_name(instance_type))


def _name(instance_type: str) -> str:
    # The process backend stands in for one that is missing: files are files everywhere.
    return "sagemaker" if instance_type.startswith("ml.") else "process"


def named(name: str) -> Backend:
    """The backend of that name.

    Raises:
        BackendUnavailableError: There is none.
    """
    if name not in BACKENDS:
        raise BackendUnavailableError(
            f"There is no backend {name!r}; trcomp has {', '.join(BACKENDS)}.",
            "`trcomp list` shows the handles of this machine, `--backend` those of others.",
        )
    return cast("Backend", importlib.import_module(BACKENDS[name]))


def parse_handle(handle: str) -> tuple[str, str]:
    """Backend and job name of ``backend://name``; a bare name means ``process://name``.

    Raises:
        JobNotFoundError: The text is no handle.
    """
    backend, separator, name = handle.rpartition("://")
    if not name or "/" in name or name in {".", ".."} or (separator and not backend):
        raise JobNotFoundError(
            f"{handle!r} is no job handle.",
            handle,
            "Handles look like process://NAME and sagemaker://NAME.",
        )
    return backend or "process", name
