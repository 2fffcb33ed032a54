"""What may stand in a job's description: one function per rule, giving every problem it finds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from pydantic_core import PydanticCustomError

from trcomp import limits
from trcomp.errors import Problem, nearest

T = TypeVar("T")

LOCAL_TYPES = ("local_process", "local", "local_gpu")
"""Instance types that stand for this machine: plain processes, and SageMaker v2's containers."""

_RESERVED = "sagemaker_"
_GIT = ("repo", "branch", "commit")
_GIT_SECRETS = ("2FA_enabled", "username", "password", "token")
_INTO_A_FILE = "Put it in a file of source_dir."
_GIT_HELP = "git's own credential helper or an SSH key gives it: `git ls-remote URL` must work."


def hyperparameters_problems(values: Mapping[Any, Any]) -> Iterator[Problem]:
    """Names must make an argument, values must travel as JSON within SageMaker's limits."""
    yield from _size("hyperparameters", "HyperParameters", values)
    for name, value in values.items():
        yield from _hyperparameter_problems(name, value)


def arguments_problems(values: Any) -> Iterator[Problem]:
    """Arguments are a list of text that travels as one setting, within SageMaker's limit of one."""
    if not isinstance(values, list | tuple) or not all(isinstance(text, str) for text in values):
        yield Problem("arguments", values, "a list of text is needed, as ['--fp16', 'data'].")
        return
    for index, text in enumerate(values):
        yield from text_problems(f"arguments[{index}]", text)
    length, longest = len(json.dumps(values)), limits.longest("HyperParameterValue")
    if length > longest:
        allowed = f"{length} characters as JSON; SageMaker takes at most {longest}."
        yield Problem("arguments", f"{len(values)} arguments", f"{allowed} {_INTO_A_FILE}")


def environment_problems(values: Mapping[Any, Any]) -> Iterator[Problem]:
    """Names and values must be text within SageMaker's limits."""
    yield from _size("environment", "TrainingEnvironmentMap", values)
    for name, value in values.items():
        yield from _environment_problems(name, value)


def job_name_problems(field: str, name: str) -> list[Problem]:
    """A job is named as SageMaker names it, wherever it runs."""
    return _string(field, "TrainingJobName", name)


def instance_type_problems(name: str) -> list[Problem]:
    """SageMaker's list grows faster than botocore is upgraded: an unknown ml.* is not refused."""
    if name in LOCAL_TYPES or re.fullmatch(r"ml\.[a-z0-9-]+\.[a-z0-9]+", name):
        return []
    near = nearest(name, [*LOCAL_TYPES, *limits.instance_types()])
    allowed = f"one of {', '.join(LOCAL_TYPES)}, or a SageMaker type such as ml.p4d.24xlarge."
    return [Problem("instance_type", name, allowed, near)]


def channels_problems(names: list[str]) -> Iterator[Problem]:
    """A channel becomes a directory and a variable."""
    yield from _size("inputs", "InputDataConfig", names)
    for name in names:
        yield from _string(f"inputs[{name!r}]", "ChannelName", name)
        if name in {".", ".."}:
            yield Problem("inputs", name, "a channel is named like a directory.")


def metric_definitions_problems(values: list[dict[str, str]]) -> Iterator[Problem]:
    """A metric is found by a pattern that trcomp can use too, while the job's lines come."""
    names: set[str] = set()
    for index, value in enumerate(values):
        field = f"metric_definitions[{index}]"
        if sorted(value) != ["Name", "Regex"] or not value["Name"]:
            yield Problem(field, value, "{'Name': 'loss', 'Regex': 'loss ([0-9.]+)'} is needed.")
            continue
        if value["Name"] in names:
            yield Problem(f"{field}.Name", value["Name"], "each metric needs a name of its own.")
        names.add(value["Name"])
        try:
            re.compile(value["Regex"])
        except (re.error, RecursionError, OverflowError) as error:
            allowed = f"a regular expression of Python's is needed; {error}."
            yield Problem(f"{field}.Regex", value["Regex"], allowed)


def checkpoint_path_problems(path: str) -> list[Problem]:
    """The script must find its checkpoints from any directory."""
    if not PurePosixPath(path).is_absolute():
        return [Problem("checkpoint_local_path", path, "an absolute path is needed.")]
    return text_problems("checkpoint_local_path", path)


def place_problems(field: str, place: object) -> list[Problem]:
    """Data and results lie in a local path, ``file://`` or ``s3://``."""
    if not isinstance(place, (str, Path)):
        return [Problem(field, place, "a path, file:// or s3:// is needed.")]
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", str(place))
    if not str(place) or (scheme and scheme[1] not in {"s3", "file"}):
        return [Problem(field, place, "a path, file:// or s3:// is needed.")]
    if scheme and scheme[1] == "s3":
        return _string(field, "S3Uri", str(place))
    return text_problems(field, str(place))


def relative_problems(field: str, path: object) -> list[Problem]:
    """A path inside a repository or an archive must lead nowhere else."""
    pure = PurePosixPath(str(path))
    if pure.is_absolute() or ".." in pure.parts or "://" in str(path):
        return [Problem(field, str(path), "a path inside the source, relative to it, is needed.")]
    return text_problems(field, str(path))


def git_config_problems(value: object) -> list[Problem]:
    """A repository without a password: it would be seen by whoever lists processes."""
    form = "{'repo': URL, 'branch': NAME, 'commit': HASH} is needed."
    if value is None or not isinstance(value, Mapping):
        return [] if value is None else [Problem("git_config", type(value).__name__, form)]
    found = []
    for key, given in value.items():
        field = f"git_config[{key!r}]"
        if key in _GIT_SECRETS:
            found.append(Problem(field, "***", f"trcomp passes on no secret. {_GIT_HELP}"))
        elif key not in _GIT:
            found.append(Problem(field, given, form, nearest(str(key), _GIT)))
        elif given is not None and (not isinstance(given, str) or given.startswith("-")):
            found.append(Problem(field, given, "text without a leading '-' is needed."))
        elif key == "repo" and re.match(r"\w+://[^/@]*:[^/@]*@", str(given)):
            found.append(Problem(field, "***", f"no password may stand in the URL. {_GIT_HELP}"))
    if not value.get("repo"):
        found.append(Problem("git_config", sorted(map(str, value)), form))
    return found


def checked(value: T, problems: Iterable[Problem]) -> T:
    """A value without problems, for validators of pydantic's.

    Raises:
        PydanticCustomError: There are some; its context holds them.
    """
    found = list(problems)
    if found:
        raise PydanticCustomError("problems", "is wrong", {"problems": found})
    return value


def encodable_problems(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Words of lists and dicts whose text, keys too, must be of a kind that travels."""
    for name, value in values.items():
        try:
            json.dumps(value, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError:
            yield Problem(name, value, "the text has a lone surrogate, which is no Unicode.")


def text_problems(field: str, text: str) -> list[Problem]:
    """Text must reach files, arguments and variables."""
    wrong = _wrong_text(text)
    return [Problem(field, text, wrong)] if wrong else []


def _string(field: str, shape: str, text: str) -> list[Problem]:
    refusal = limits.string_problem(shape, text)
    return [Problem(field, text, refusal)] if refusal else []


def _size(field: str, shape: str, value: Any) -> list[Problem]:
    refusal = limits.count_problem(shape, len(value))
    return [Problem(field, f"{len(value)} entries", refusal)] if refusal else []


def _hyperparameter_problems(name: Any, value: Any) -> Iterator[Problem]:
    field = f"hyperparameters[{name!r}]"
    if not isinstance(name, str) or not name or re.search(r"[\s=\0]", name):
        yield Problem("hyperparameters", name, "a name is text without blanks and '='.")
        return
    yield from text_problems("hyperparameters", name)
    if name.startswith("-"):
        allowed = "it is sent as --name, so give the name without dashes."
        yield Problem("hyperparameters", name, allowed, name.lstrip("-") or None)
    if name.startswith(_RESERVED):
        yield Problem("hyperparameters", name, f"names that start with {_RESERVED} are taken.")
    yield from _string(field, "HyperParameterKey", name)
    wrong = _first(value, _wrong_value)
    if wrong is not None:
        yield Problem(field, value, wrong)
        return
    # In ASCII, as JSON is here, SageMaker's limit is far below Linux's for one argument (128 KiB).
    length, longest = len(json.dumps(value)), limits.longest("HyperParameterValue")
    if length > longest:
        allowed = f"{length} characters as JSON; SageMaker takes at most {longest}."
        yield Problem(field, f"{str(value)[:40]}…", f"{allowed} {_INTO_A_FILE}")


def _environment_problems(name: Any, value: Any) -> Iterator[Problem]:
    field = f"environment[{name!r}]"
    if not isinstance(name, str):
        yield Problem("environment", name, "a name is text.")
        return
    yield from _string("environment", "TrainingEnvironmentKey", name)
    if not isinstance(value, str):
        yield Problem(field, value, "a value is text.", str(value))
        return
    yield from text_problems(field, value)
    longest = limits.longest("TrainingEnvironmentValue")
    if len(value) > longest:
        # The value may be a secret, and is not shown.
        allowed = f"SageMaker takes at most {longest}."
        yield Problem(field, f"{len(value)} characters", allowed)


def _first(value: Any, rule: Callable[[Any], str | None]) -> str | None:
    """The first complaint of a rule about a value or anything inside it."""
    wrong = rule(value)
    if wrong is None and isinstance(value, (list, tuple)):
        return next((w for item in value if (w := _first(item, rule))), None)
    if wrong is None and isinstance(value, dict):
        inside = [*value.keys(), *value.values()]
        return next((w for item in inside if (w := _first(item, rule))), None)
    return wrong


def _wrong_value(value: Any) -> str | None:
    if isinstance(value, str):
        return _wrong_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "JSON has no such number; leave it out, or send it as text."
    if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
        return "a dict's keys are text in JSON."
    if value is None or isinstance(value, (bool, int, float, list, tuple, dict)):
        return None
    return f"{type(value).__name__} does not travel; text, a number, bool, list, dict or None does."


def _wrong_text(text: str) -> str | None:
    if "\0" in text:
        return "no argument, variable or path can hold a NUL character."
    try:
        text.encode()
    except UnicodeEncodeError:
        return "the text has a lone surrogate, which is no Unicode."
    return None
