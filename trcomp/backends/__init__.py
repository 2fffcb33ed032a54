"""Which backend runs a job: a literal table, each module imported when first needed."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, cast

from trcomp.errors import BackendUnavailableError, JobNotFoundError, Problem

if TYPE_CHECKING:
    from trcomp.backends.base import Backend
    from trcomp.spec import JobSpec

BACKENDS = {
    "process": "trcomp.backends.process",
    "docker": "trcomp.backends.docker",
    "sagemaker": "trcomp.backends.sagemaker",
}

LOCAL = ("process", "docker")
"""Those whose jobs run on this machine."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,127}")
"""A name leads to a directory: none may lead out of that of jobs."""
_CONTAINERS = ("local", "local_gpu")
"""SageMaker v2's names for containers on this machine."""


def problems(spec: JobSpec) -> list[Problem]:
    """What the backend of a spec's instance type cannot do."""
    return for_instance_type(spec.instance_type).problems(spec)


def for_instance_type(instance_type: str) -> Backend:
    """The backend that runs jobs of an instance type."""
    if instance_type.startswith("ml."):
        return named("sagemaker")
    return named("docker" if instance_type in _CONTAINERS else "process")


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
    if not _NAME.fullmatch(name) or (separator and not backend):
        raise JobNotFoundError(
            f"{handle!r} is no job handle.",
            handle,
            "Handles look like process://NAME, docker://NAME and sagemaker://NAME.",
        )
    return backend or "process", name
