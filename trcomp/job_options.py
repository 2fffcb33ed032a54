"""What describes a job on the command line: its options, and the estimator that they make."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

from trcomp import rules
from trcomp.config import TrainingCompilerConfig
from trcomp.contract import to_argv
from trcomp.defaults import Default
from trcomp.defaults import value as value_of
from trcomp.description import problems_of
from trcomp.errors import Problem, SpecError
from trcomp.estimator import Estimator
from trcomp.profile_steps import ProfileSteps

profile_option = click.option("--profile", help="The profile of trcomp.toml or pyproject.toml.")


def script_options(command: Any) -> Any:
    """Give a command the arguments and options that say which script runs with what."""
    return _decorated(
        command,
        click.argument("script"),
        click.argument("script_args", nargs=-1, type=click.UNPROCESSED),
        click.option("--source-dir", help="Directory of SCRIPT; all of it reaches the job."),
        click.option(
            "--devices",
            type=click.IntRange(min=1),
            help="Virtual CPU devices per host without GPUs.",
        ),
        click.option(
            "--env",
            "env",
            multiple=True,
            metavar="NAME=VALUE",
            help="A variable for the script; repeatable.",
        ),
        click.option(
            "--input", "inputs", multiple=True, metavar="[CHANNEL=]PLACE", help="Data; repeatable."
        ),
    )


def job_options(command: Any) -> Any:
    """Give a command the arguments and options that describe a job."""
    decorated = _decorated(
        command,
        click.option(
            "--instance-type",
            default="local_process",
            show_default=True,
            help="Where it runs: local_process is this machine, local and local_gpu are containers "
            "on it, ml.* is SageMaker.",
        ),
        click.option("--instance-count", default=1, show_default=True, help="Number of hosts."),
        click.option("--role", help="ARN of the IAM role of a job in SageMaker."),
        click.option("--image-uri", help="Image of the job's containers; default: trcomp's own."),
        click.option(
            "--set",
            "more",
            multiple=True,
            metavar="WORD=VALUE",
            help="Any other word of Estimator, its value JSON or text: max_run=3600; repeatable.",
        ),
        click.option("--output-path", help="Where results go; default: the job's directory."),
        click.option("--checkpoint-uri", help="Where checkpoints are kept between jobs."),
        click.option(
            "--max-restarts",
            type=click.IntRange(min=0),
            help="How often all workers start anew within the job if SCRIPT fails; default: 0.",
        ),
        click.option("--job-name", help="Default: the script's name and the time."),
        click.option(
            "--compiler/--no-compiler",
            default=True,
            help="One worker per device, with XLA (the default) or without.",
        ),
        click.option(
            "--once-per-host", is_flag=True, help="The script starts its ranks itself (xmp.spawn)."
        ),
        click.option(
            "--debug",
            is_flag=True,
            help="Write each compiled graph into output/data/compiler, in three forms.",
        ),
        click.option(
            "--profile-steps",
            metavar="FIRST-LAST",
            help="Steps of which each rank writes a trace into output/data/profile.",
        ),
        click.option(
            "--cuda-to-xla/--no-cuda-to-xla",
            default=True,
            help="Let cuda mean the worker's own device (the default), or leave it to torch.",
        ),
    )
    return script_options(decorated)


def _decorated(command: Any, *decorators: Any) -> Any:
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


def requested_job(
    script: str,
    script_args: Sequence[str],
    env: Sequence[str],
    inputs: Sequence[str],
    devices: int | None,
    compiler: bool = True,
    once_per_host: bool = False,
    debug: bool = False,
    cuda_to_xla: bool = True,
    profile_steps: str | None = None,
    checkpoint_uri: str | None = None,
    job_name: str | None = None,
    more: Sequence[str] = (),
    defaults: Mapping[str, Default] | None = None,
    **words: Any,
) -> tuple[Estimator, dict[str, Any]]:
    """An estimator, and the words of its `fit` and `plan`.

    Args:
        defaults: The words of a file and of the environment; what is typed wins over them.

    Raises:
        SpecError: Holds every problem of the whole command line.
    """
    problems: list[Problem] = []
    environment = _pairs("--env", env, problems)
    if devices is not None:
        environment["GPU_NUM_DEVICES"] = str(devices)
    config = None
    if not once_per_host:
        try:
            steps = ProfileSteps.checked(profile_steps, "--profile-steps")
        except SpecError as error:
            problems += error.problems
            steps = None
        config = TrainingCompilerConfig(compiler, debug, cuda_to_xla, profile_steps=steps)
    without_effect = {
        "--debug": debug,
        "--no-compiler": not compiler,
        "--no-cuda-to-xla": not cuda_to_xla,
        "--profile-steps": profile_steps is not None,
    }
    for option, given in without_effect.items():
        if once_per_host and given:
            allowed = "it is for workers that trcomp starts; leave out --once-per-host or this."
            problems.append(Problem(option, True, allowed))
    set_words = {name: value_of(text) for name, text in _pairs("--set", more, problems).items()}
    words |= set_words
    words |= {
        "entry_point": script,
        **script_words(script_args),
        "environment": environment,
        "compiler_config": config,
        "checkpoint_s3_uri": checkpoint_uri,
    }
    # A place may hold "=" too, as s3://bucket/day=1 does.
    channels = [text if re.match(r"[^/=]+=", text) else f"training={text}" for text in inputs]
    request: dict[str, Any] = {"inputs": _pairs("--input", channels, problems) or None}
    if job_name is not None:
        request["job_name"] = job_name
    used = _take_defaults(defaults or {}, words, request, _typed() | set(set_words))
    problems += [_with_origin(problem, used) for problem in problems_of(words | request)]
    if problems:
        raise SpecError(problems)
    return Estimator(**words), request


_WORDS = {
    "checkpoint_uri": "checkpoint_s3_uri",
    "compiler": "compiler_config",
    "once_per_host": "compiler_config",
    "debug": "compiler_config",
    "cuda_to_xla": "compiler_config",
    "profile_steps": "compiler_config",
    "script_args": "arguments",
}
"""Of options that are not called as the word that they give."""


def _typed() -> set[str]:
    """The words whose options were typed."""
    context = click.get_current_context(silent=True)
    if context is None:
        return set()
    typed = [
        name
        for name in context.params
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    return {_WORDS.get(name, name) for name in typed}


def _take_defaults(
    defaults: Mapping[str, Default], words: dict[str, Any], request: dict[str, Any], typed: set[str]
) -> dict[str, Default]:
    """Put defaults where nothing was typed; gives those that are in use."""
    used = {}
    for word, default in defaults.items():
        target = request if word in {"inputs", "experiment_config"} else words
        if word in {"environment", "hyperparameters"} and isinstance(default.value, Mapping):
            # What is typed may be one of several.
            words[word] = {**default.value, **words[word]}
        elif word in typed:
            continue
        else:
            target[word] = default.value
        used[word] = default
    return used


def _with_origin(problem: Problem, defaults: Mapping[str, Default]) -> Problem:
    """A problem with the place of the word that it is about, if nobody typed it."""
    word = re.split(r"[.\[]", problem.field)[0]
    if word not in defaults:
        return problem
    return dataclasses.replace(problem, field=f"{problem.field} ({defaults[word].origin})")


def script_words(args: Sequence[str]) -> dict[str, Any]:
    """A script's arguments in words of `Estimator`, by which they arrive exactly as they are.

    They are hyperparameters where those say the same, ``--name value`` with each name once:
    SageMaker shows and searches them. Others travel as one list.
    """
    pairs: dict[str, str] = {}
    rest = iter(args)
    for argument in rest:
        name, separator, value = argument.removeprefix("--").partition("=")
        pairs[name] = value if separator else next(rest, "")
    if to_argv(pairs) == list(args) and not any(rules.hyperparameters_problems(pairs)):
        return {"hyperparameters": pairs}
    return {"hyperparameters": {}, "arguments": list(args)}


def _pairs(option: str, texts: Sequence[str], problems: list[Problem]) -> dict[str, str]:
    """The values of a repeatable option by their names; adds what is wrong to problems."""
    for text in texts:
        if "=" not in text:
            problems.append(Problem(option, text, "NAME=VALUE is needed."))
    return dict(text.split("=", 1) for text in texts if "=" in text)
