"""The argument JOB of commands: a handle, completed from the jobs that there are."""

from __future__ import annotations

from contextlib import suppress

import click
from click.shell_completion import CompletionItem

from trcomp import backends
from trcomp.backends.base import JobRecord
from trcomp.errors import TrcompError


def records(backend: str | None) -> list[JobRecord]:
    """The records of a backend's jobs, or of all that run on this machine, oldest first."""
    chosen = backends.LOCAL if backend is None else (backend,)
    found = [record for name in chosen for record in backends.named(name).records()]
    return sorted(found, key=lambda record: record.transitions[0].time)


def handles(context: object, parameter: object, incomplete: str) -> list[CompletionItem]:
    """The jobs that a shell can complete; SageMaker is asked once its name is typed."""
    chosen = "sagemaker" if incomplete.startswith("sagemaker://") else None
    with suppress(TrcompError):
        typed = [record.typed for record in reversed(records(chosen))]
        return [CompletionItem(name) for name in typed if name.startswith(incomplete)]
    return []


job_argument = click.argument("job", shell_complete=handles)
