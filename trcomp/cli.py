"""The command line: one thin command per thing that can be done with a job."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from trcomp import backends, bench, defaults
from trcomp._version import __version__
from trcomp.backends.base import masked
from trcomp.build_command import build, push
from trcomp.doctor_command import examine
from trcomp.env_command import env
from trcomp.errors import JobError, SpecError, TrcompError
from trcomp.follow import report_rows, stage_text, unmeasured
from trcomp.iam_command import iam_policy
from trcomp.job import Job
from trcomp.job_argument import handles, job_argument, records
from trcomp.job_options import job_options, profile_option, requested_job, script_options
from trcomp.json_output import json_option, print_json
from trcomp.profile_command import profile_job
from trcomp.top_command import top

_DOCKERS_WORDS = {"rm": "remove", "ps": "list", "ls": "list", "kill": "stop", "inspect": "status"}


class _Commands(click.Group):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        meant = _DOCKERS_WORDS.get(args[0])
        if meant and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {meant!r}?", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="trcomp")
def cli() -> None:
    """Train PyTorch scripts through the XLA compiler, from a laptop to SageMaker."""


@cli.command()
@job_options
@click.option("--detach", is_flag=True, help="Print the handle and return; the job goes on.")
@click.option("--quiet", is_flag=True, help="Show the job's stages, not its workers' lines.")
@click.option(
    "--retries",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="How often to start anew, from its checkpoints, if SCRIPT fails.",
)
@profile_option
@json_option
def run(
    detach: bool, quiet: bool, retries: int, profile: str | None, as_json: bool, **words: Any
) -> None:
    """Run SCRIPT as a job: trcomp run train.py --devices 2 -- --steps 50

    What follows -- are the script's arguments, exactly as they are.
    """
    estimator, request = requested_job(**words, defaults=_defaults(profile))
    how: dict[str, Any] = {"wait": not detach, "logs": "None" if quiet else "All"}
    # With JSON on standard output all that is for a reader goes to the other.
    out = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    try:
        with out:
            estimator.fit(**request, **how, retries=retries)
    finally:
        job = estimator.latest_training_job
        if job is not None and as_json:
            print_json(job.describe())
    if detach and job is not None and not as_json:
        click.echo(job.handle)


@cli.command()
@job_options
@profile_option
@json_option
def plan(profile: str | None, as_json: bool, **words: Any) -> None:
    """Print what `run` would submit. Nothing is started or written."""
    estimator, request = requested_job(**words, defaults=_defaults(profile))
    planned = estimator.plan(**request)
    click.echo(planned.to_json() if as_json else planned.to_text())


@cli.command(name="bench")
@script_options
@click.option(
    "--steps",
    default=30,
    show_default=True,
    type=click.IntRange(min=2),
    help="Steps after which each form of the script ends.",
)
@json_option
def bench_forms(as_json: bool, steps: int, **words: Any) -> None:
    """Run SCRIPT without XLA, with it, and with its models compiled; say which to use.

    Each form is a job on this machine, one after the other: trcomp bench train.py -- --lr 0.1
    """
    measured = bench.measure(words, steps, lambda text: click.echo(text, err=True))
    if as_json:
        best = bench.fastest(measured)
        forms = [dataclasses.asdict(one) for one in measured]
        print_json({"forms": forms, "use": best and best.form})
        return
    for line in bench.table(measured):
        click.echo(line)
    click.echo(f"\n{bench.advice(measured)}")


@cli.command()
@job_argument
@json_option
def status(job: str, as_json: bool) -> None:
    """Print the state of JOB (process://NAME, NAME or sagemaker://NAME) and how it came to it."""
    handle = Job.attach(job)
    if as_json:
        print_json(handle.describe())
        return
    record = handle.record()
    begin = record.transitions[0].time
    click.echo(f"{record.handle}  {record.status}  {record.place}")
    for step in record.transitions:
        click.echo(stage_text(step, begin))
    if record.failure is not None:
        click.echo(f"{record.failure.message}\n{record.failure.traceback}".rstrip())


@cli.command()
@job_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("--json", "as_json", is_flag=True, help="Print each line as a JSON string.")
def logs(job: str, follow: bool, as_json: bool) -> None:
    """Print what the workers of JOB printed."""
    for line in Job.attach(job).logs(follow):
        click.echo(json.dumps(line) if as_json else line)


@cli.command(name="list")
@click.option(
    "--backend",
    type=click.Choice(list(backends.BACKENDS)),
    help="Whose jobs; default: all of this machine. sagemaker: the AWS account's, in its region.",
)
@json_option
def list_jobs(backend: str | None, as_json: bool) -> None:
    """List the jobs of this machine, or the newest of SageMaker, oldest first."""
    found = records(backend)
    if as_json:
        fields = [{"handle": record.handle, "status": record.status} for record in found]
        print_json(fields)
        return
    for record in found:
        begin = record.transitions[0].time.astimezone()
        click.echo(f"{begin:%Y-%m-%d %H:%M:%S}  {record.status:<10}  {record.handle}")


@cli.command()
@job_argument
@click.option("--no-wait", is_flag=True, help="Return at once.")
@json_option
def stop(job: str, no_wait: bool, as_json: bool) -> None:
    """Stop JOB and all its processes."""
    handle = Job.attach(job)
    handle.stop()
    if not no_wait:
        with suppress(JobError):
            handle.wait()
    if as_json:
        print_json({"handle": handle.handle, "status": handle.status()})
        return
    click.echo(f"{handle.handle}  {handle.status()}")


@cli.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...", shell_complete=handles)
@json_option
def remove(jobs: Sequence[str], as_json: bool) -> None:
    """Delete all that is kept of each JOB, which must have ended; results at --output-path stay."""
    handles = [Job.attach(job) for job in jobs]
    for handle in handles:
        handle.remove()
        if not as_json:
            click.echo(f"{handle.handle}  removed")
    if as_json:
        print_json({"removed": [handle.handle for handle in handles]})


@cli.command()
@job_argument
@click.option("--to", "directory", help="Where to; default: a directory of the job's name here.")
@click.option(
    "--only",
    type=click.Choice(["model", "output"]),
    help="Only the model, or only the other files that the script left.",
)
@json_option
def download(job: str, directory: str | None, only: str | None, as_json: bool) -> None:
    """Write the results of JOB, model.tar.gz and output.tar.gz, onto this machine."""
    handle = Job.attach(job)
    which = [only] if only else ["model", "output"]
    written = handle.download(directory or handle.name, which)
    if as_json:
        print_json({"handle": handle.handle, "files": [str(path) for path in written]})
        return
    if not written:
        click.echo(f"{handle.handle} left no {' and no '.join(which)} (yet).")
    for path in written:
        click.echo(path)


@cli.group()
def config() -> None:
    """The words of jobs that trcomp.toml, pyproject.toml and the environment give."""


@config.command()
@profile_option
@json_option
def show(profile: str | None, as_json: bool) -> None:
    """Print each word with its value, secrets masked, and where it comes from."""
    found = _defaults(profile)
    values = {name: default.value for name, default in found.items()}
    for name, value in masked(values).items():
        shown = masked(value) if isinstance(value, dict) else value
        found[name] = defaults.Default(shown, found[name].origin)
    if as_json:
        print_json({name: dataclasses.asdict(default) for name, default in found.items()})
        return
    if not found:
        click.echo("Nothing is set.")
    for name, default in found.items():
        click.echo(f"{name} = {json.dumps(default.value)}  # {default.origin}")


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what SHELL runs to complete commands, options and jobs.

    For bash: eval "$(trcomp completion bash)" in ~/.bashrc; zsh and fish alike.
    """
    complete = get_completion_class(shell)
    assert complete is not None
    click.echo(complete(cli, {}, "trcomp", "_TRCOMP_COMPLETE").source())


@cli.command()
@job_argument
@click.option("--html", "file", metavar="FILE", help="Write the job's page, for a browser.")
@json_option
def report(job: str, file: str | None, as_json: bool) -> None:
    """Print what the workers of JOB measured, or write it as a page."""
    handle = Job.attach(job)
    if file is not None:
        Path(file).write_text(handle.page(), encoding="utf-8")
        click.echo(file)
        return
    measured = handle.report()
    if as_json:
        print_json(measured)
        return
    if not measured["ranks"]:
        click.echo(unmeasured(handle))
        return
    for name, value in report_rows(measured["totals"]):
        click.echo(f"{name:<20}{value}")


cli.add_command(build)
cli.add_command(push)
cli.add_command(env)
cli.add_command(examine)
cli.add_command(iam_policy)
cli.add_command(profile_job)
cli.add_command(top)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; gives the process's exit code. Errors are text, never a traceback."""
    try:
        cli.main(args=args, prog_name="trcomp", standalone_mode=False)
    except TrcompError as error:
        click.echo(f"Error: {error}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return SpecError.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # `trcomp logs | head`: nobody reads on. Python would complain again as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception:
        traceback.print_exc()
        click.echo("Error: this is a defect of trcomp; please report the lines above.", err=True)
        return 70
    return 0


def _defaults(profile: str | None) -> dict[str, defaults.Default]:
    return defaults.found(Path.cwd(), os.environ, profile)
