"""TrainingCompilerConfig and `distribution`: how a script is compiled and started."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trcomp import s3
from trcomp.errors import Problem, SpecError, nearest
from trcomp.profile_steps import ProfileSteps


@dataclass(frozen=True)
class TrainingCompilerConfig:
    """Ask for one worker per device, each running the script through XLA.

    Args:
        enabled: False starts the same workers with the same script on torch's own devices, without
            XLA: the two runs can be compared. ``bool(config)`` is this value.
        debug: Write each compiled graph into ``output/data/compiler``: as text, as StableHLO and as
            XLA optimised it. Each rank writes its own.
        cuda_to_xla: Let a script written for GPUs run as it is: ``cuda`` is then the worker's own
            device. False leaves ``torch.cuda`` as torch has it. Means nothing without ``enabled``.
        cache: The directory that keeps executables from one job to the next; "off" keeps none.
            ``s3://bucket/prefix``: each host takes them from there before its workers start, and
            leaves new ones there after they succeeded. Who may write there can run code in the
            jobs that read it. None: ``TRCOMP_CACHE``, by default ``~/.cache/trcomp``.
        profile_steps: The first and the last step, counted from 1 and 2 at least, of which each
            rank writes a trace into ``output/data/profile``, for Perfetto and XProf.

    Raises:
        SpecError: Holds every value that is not of its type.
    """

    enabled: bool = True
    debug: bool = False
    cuda_to_xla: bool = True
    cache: str | os.PathLike[str] | None = None
    profile_steps: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        values = dataclasses.asdict(self)
        problems = _cache_problems(values.pop("cache"))
        problems += _profile_problems(values.pop("profile_steps"))
        problems += [
            Problem(f"compiler_config.{name}", value, "True or False is needed.")
            for name, value in values.items()
            if not isinstance(value, bool)
        ]
        if problems:
            raise SpecError(problems)
        if self.profile_steps is not None:  # JSON and TOML have lists.
            object.__setattr__(self, "profile_steps", tuple(self.profile_steps))

    def __bool__(self) -> bool:
        return self.enabled


def _cache_problems(cache: object) -> list[Problem]:
    field = "compiler_config.cache"
    if cache is not None and not (isinstance(cache, str | os.PathLike) and os.fspath(cache)):
        return [Problem(field, cache, 'a directory, s3://bucket/prefix, "off" or None is needed.')]
    if isinstance(cache, str) and s3.is_url(cache):
        return [Problem(field, cache, fault) for fault in s3.faults(cache)]
    return []


def _profile_problems(steps: object) -> list[Problem]:
    try:
        ProfileSteps.checked(steps, "compiler_config.profile_steps")
    except SpecError as error:
        return list(error.problems)
    return []


_OPTIONS: dict[str, tuple[str, ...]] = {
    "pytorchxla": ("enabled",),
    "trcomp": tuple(field.name for field in dataclasses.fields(TrainingCompilerConfig)),
    "torch_distributed": ("enabled",),
}
"""Mechanisms of ``distribution``, and what each can be told."""

_ELSEWHERE = ("smdistributed", "mpi", "parameter_server", "pytorchddp", "multi_worker_mirrored")
"""Mechanisms of SageMaker v2's ``distribution`` that start other runtimes than trcomp's."""

_FORM = "{'pytorchxla': {'enabled': True}}, or 'trcomp' or 'torch_distributed' likewise, is needed."


def distribution_problems(distribution: object) -> list[Problem]:
    """What is wrong with ``distribution``: SageMaker's SDK v2 ignores such words in silence."""
    if distribution is None:
        return []
    if not isinstance(distribution, Mapping):
        return [Problem("distribution", distribution, _FORM)]
    problems = []
    for key, value in distribution.items():
        field = f"distribution[{key!r}]"
        if key == "instance_groups":
            problems += _names_problems(field, value)
        elif key in _ELSEWHERE:
            allowed = f"trcomp starts no such runtime; {_FORM}"
            problems.append(Problem(field, value, allowed))
        elif key not in _OPTIONS:
            near = nearest(str(key), [*_OPTIONS, "instance_groups"])
            problems.append(Problem(field, value, f"no such mechanism; {_FORM}", near))
        elif not isinstance(value, Mapping):
            problems.append(Problem(field, value, _FORM))
        else:
            problems += _option_problems(field, value, _OPTIONS[key])
    enabled = [key for key in _OPTIONS if _enabled(distribution, key)]
    if "torch_distributed" in enabled and len(enabled) > 1:
        allowed = "torch_distributed runs without XLA, the others through it; leave one out."
        problems.append(Problem("distribution", enabled, allowed))
    return problems


def asked_for(distribution: Mapping[str, Any] | None) -> TrainingCompilerConfig | None:
    """The compiler_config that a sound ``distribution`` alone stands for, None if for none."""
    given = distribution or {}
    if "trcomp" in given:
        return TrainingCompilerConfig(**given["trcomp"])
    if _enabled(given, "pytorchxla"):
        return TrainingCompilerConfig()
    if _enabled(given, "torch_distributed"):
        return TrainingCompilerConfig(enabled=False)
    return None


def _enabled(distribution: Mapping[Any, Any], key: str) -> bool:
    value = distribution.get(key)
    return isinstance(value, Mapping) and value.get("enabled", key == "trcomp") is True


def _names_problems(field: str, value: object) -> list[Problem]:
    if isinstance(value, list | tuple) and value and all(isinstance(name, str) for name in value):
        return []
    return [Problem(field, value, "a list of names of instance_groups is needed.")]


def _option_problems(
    field: str, value: Mapping[object, object], options: tuple[str, ...]
) -> list[Problem]:
    problems = []
    for key, given in value.items():
        if key not in options:
            near = nearest(str(key), options)
            problems.append(Problem(f"{field}[{key!r}]", given, "no such option.", near))
        elif key == "cache":
            problems += _cache_problems(given)
        elif key == "profile_steps":
            problems += _profile_problems(given)
        elif not isinstance(given, bool):
            problems.append(Problem(f"{field}[{key!r}]", given, "True or False is needed."))
    return problems
