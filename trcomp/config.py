"""TrainingCompilerConfig and `distribution`: how a script is compiled and started."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass

from trcomp import s3
from trcomp.errors import Problem, SpecError, nearest


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

    Raises:
        SpecError: Holds every value that is not of its type.
    """

    enabled: bool = True
    debug: bool = False
    cuda_to_xla: bool = True
    cache: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        values = dataclasses.asdict(self)
        problems = _cache_problems(values.pop("cache"))
        problems += [
            Problem(f"compiler_config.{name}", value, "True or False is needed.")
            for name, value in values.items()
            if not isinstance(value, bool)
        ]
        if problems:
            raise SpecError(problems)

    def __bool__(self) -> bool:
        return self.enabled


def _cache_problems(cache: object) -> list[Problem]:
    field = "compiler_config.cache"
    if cache is not None and not (isinstance(cache, str | os.PathLike) and os.fspath(cache)):
        return [Problem(field, cache, 'a directory, s3://bucket/prefix, "off" or None is needed.')]
    if isinstance(cache, str) and s3.is_url(cache):
        return [Problem(field, cache, fault) for fault in s3.faults(cache)]
    return []


_ELSEWHERE = ("torch_distributed", "smdistributed", "mpi", "parameter_server", "pytorchddp")
"""Mechanisms of SageMaker v2's ``distribution`` that start other runtimes than XLA's."""


def distribution_problems(distribution: object) -> list[Problem]:
    """What is wrong with ``distribution``: SageMaker's SDK v2 ignores such words in silence."""
    if distribution is None:
        return []
    form = "{'pytorchxla': {'enabled': True}} is needed."
    if not isinstance(distribution, Mapping):
        return [Problem("distribution", distribution, form)]
    problems = []
    for key, value in distribution.items():
        field = f"distribution[{key!r}]"
        if key in _ELSEWHERE:
            problems.append(Problem(field, value, f"not supported yet; {form}"))
        elif key != "pytorchxla":
            near = nearest(str(key), ["pytorchxla"])
            problems.append(Problem(field, value, f"no such mechanism; {form}", near))
        elif not isinstance(value, Mapping):
            problems.append(Problem(field, value, form))
        else:
            problems += _switch_problems(field, value)
    return problems


def _switch_problems(field: str, value: Mapping[object, object]) -> list[Problem]:
    problems = []
    for key, switch in value.items():
        if key != "enabled":
            near = nearest(str(key), ["enabled"])
            problems.append(Problem(f"{field}[{key!r}]", switch, "no such option.", near))
        elif not isinstance(switch, bool):
            problems.append(Problem(f"{field}['enabled']", switch, "True or False is needed."))
    return problems
