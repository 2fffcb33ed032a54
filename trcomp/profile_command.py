"""`trcomp profile`: runs a script to trace some of its steps, or takes the traces out of a job."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from trcomp import defaults
from trcomp.errors import JobFailedError, Problem, SpecError
from trcomp.job import Job
from trcomp.job_options import job_options, profile_option, requested_job
from trcomp.json_output import json_option, print_json
from trcomp.profile_steps import ProfileSteps

_STEPS = str(ProfileSteps(10, 15))
_FOLDER = "profile"
"""Of output/data, where each rank left its trace."""
_OF_A_JOB = {"script", "directory", "as_json"}


@click.command(name="profile")
@job_options
@click.option("--to", "directory", help="Where traces go; default: NAME-profile here.")
@profile_option
@json_option
def profile_job(
    script: str, directory: str | None, profile: str | None, as_json: bool, **words: Any
) -> None:
    """Run SCRIPT and trace some of its steps, or give the traces of a JOB that has ended.

    trcomp profile train.py -- --lr 0.1, or trcomp profile NAME of a job that had profile_steps.
    Without --profile-steps, steps 10 to 15 are traced.
    """
    if script.endswith(".py"):
        words["profile_steps"] = words["profile_steps"] or _STEPS
        words["defaults"] = defaults.found(Path.cwd(), os.environ, profile)
        # With JSON on standard output all that is for a reader goes to the other.
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            job, failure = _run(words | {"script": script})
    else:
        _refuse_options()
        job, failure = Job.attach(script), None
    target = Path(directory or f"{job.name}-profile")
    written = list(_fetched(job, target))
    if as_json:
        print_json({"handle": job.handle, "files": [str(path) for path in written]})
    else:
        _show(job, target, written)
    if failure is not None:
        raise failure


def _run(words: dict[str, Any]) -> tuple[Job, JobFailedError | None]:
    """The job once it has ended, and how it failed, if it did."""
    estimator, request = requested_job(**words)
    try:
        estimator.fit(**request)
    except JobFailedError as error:
        return Job.attach(error.handle), error
    assert estimator.latest_training_job is not None
    return estimator.latest_training_job, None


def _refuse_options() -> None:
    """Say which options of a run make no sense for a job that there is.

    Raises:
        SpecError: There are some.
    """
    context = click.get_current_context()
    typed = [
        name
        for name in context.params
        if name not in _OF_A_JOB
        and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    allowed = "it is for a SCRIPT (a name that ends with .py) that is run; leave it out for a JOB."
    options = {p.name: p.opts[-1] for p in context.command.params}
    if problems := [Problem(options[n], context.params[n], allowed) for n in typed]:
        raise SpecError(problems)


def _fetched(job: Job, target: Path) -> Iterator[Path]:
    """Write the traces among a job's results; gives the files."""
    with tempfile.TemporaryDirectory(prefix="trcomp-") as scratch:
        for path in job.download(scratch, ["output"]):
            if tarfile.is_tarfile(path):
                with tarfile.open(path) as archive:
                    archive.extractall(Path(scratch, "output"), filter="data")
        source = Path(scratch, "output", _FOLDER)
        for path in sorted(source.rglob("*")):
            if path.is_file():
                place = target / path.relative_to(source)
                place.parent.mkdir(parents=True, exist_ok=True)
                yield Path(shutil.copy(path, place))


def _show(job: Job, target: Path, written: list[Path]) -> None:
    if not written:
        told = "has left no traces: it had no profile_steps, or ended before the first of them"
        if not job.status().ended:
            told = "has no traces yet: it leaves them as it ends"
        click.echo(f"{job.handle} {told}; --profile-steps says which steps are traced.")
        return
    for path in written:
        click.echo(path)
    click.echo(
        "Open the .trace.json.gz files at https://ui.perfetto.dev (they stay on this machine), or "
        f"look at all ranks with `pip install xprof`, `xprof --logdir {target}`."
    )
