"""What every launcher tells its containers of a job, and the variables that a job may not set."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from trcomp import flags, limits
from trcomp.config import TrainingCompilerConfig
from trcomp.contract import GROUPS_SETTING, InstanceGroup, Settings
from trcomp.env.topology import wanted_devices
from trcomp.errors import Problem, SpecError, nearest
from trcomp.rules import LOCAL_TYPES
from trcomp.spec import JobSpec

OWN_VARIABLES = ("SAGEMAKER_BASE_DIR", "TRAINING_JOB_NAME")
"""What each container is given beside the flags of its job."""


def settings(spec: JobSpec, cache: str | None, submit_directory: str | None = None) -> Settings:
    """A job's settings.

    Args:
        spec: The job.
        cache: Where executables are kept, as a container sees it.
        submit_directory: The archive with the code, if code does not lie there already.
    """
    return replace(
        compiler_settings(spec.compiler_config, cache),
        program=spec.program,
        submit_directory=submit_directory,
        pytorchxla_enabled=spec.pytorchxla,
        arguments=spec.arguments,
        metric_definitions=_short(metric_definitions(spec)),
        log_level=spec.container_log_level,
        other=_other(spec),
    )


def metric_definitions(spec: JobSpec) -> dict[str, str]:
    """The patterns of the metrics that a job's lines hold, by their names."""
    given = spec.managed.get("metric_definitions", ())
    return {one["Name"]: one["Regex"] for one in given if {"Name", "Regex"} <= set(one)}


def _short(definitions: dict[str, str]) -> dict[str, str]:
    """What of them a hyperparameter has room for: all, or none."""
    longest = limits.longest("HyperParameterValue")
    return definitions if len(json.dumps(definitions)) <= longest else {}


def compiler_settings(config: TrainingCompilerConfig | None, cache: str | None) -> Settings:
    """What a compiler_config alone says to a container.

    Args:
        config: None: the script starts its ranks itself.
        cache: Where executables are kept, as a container sees it.
    """
    if config is None:
        return Settings(compiler_cache=cache)
    return Settings(
        compiler_enabled=config.enabled,
        compiler_debug=config.debug,
        cuda_to_xla=config.cuda_to_xla,
        compiler_cache=cache,
        profile_steps=config.profile_steps,
    )


def group_problems(spec: JobSpec) -> list[Problem]:
    """What does not fit together of instance groups and of the words that name them."""
    groups = {group.get("InstanceGroupName"): group for group in spec.groups}
    found = []
    if len(groups) < len(spec.groups):
        found.append(Problem("instance_groups", list(groups), "each needs a name of its own."))
    counts = [group.get("InstanceCount") for group in spec.groups]
    if groups and all(isinstance(count, int) for count in counts):
        total = sum(count for count in counts if isinstance(count, int))
        if total != spec.instance_count:
            allowed = f"instance_groups have {total} hosts; leave it out."
            found.append(Problem("instance_count", spec.instance_count, allowed))
    first = spec.groups[0].get("InstanceType") if groups else None
    if groups and spec.instance_type not in {first, *LOCAL_TYPES}:
        allowed = f"instance_groups begin with {first}; leave it out."
        found.append(Problem("instance_type", spec.instance_type, allowed))
    named = {"distribution['instance_groups']": distribution_groups(spec)}
    named |= {
        f"inputs[{i.channel!r}].instance_groups": list(i.instance_groups) for i in spec.inputs
    }
    for field, names in named.items():
        if unknown := [name for name in names if name not in groups]:
            near = nearest(unknown[0], [str(name) for name in groups])
            allowed = f"instance_groups are {', '.join(map(str, groups)) or 'not given'}."
            found.append(Problem(field, unknown, allowed, near))
    ranked = [groups[name] for name in distribution_groups(spec) or groups if name in groups]
    if len({group.get("InstanceType") for group in ranked}) > 1:
        allowed = (
            "ranks run on hosts of one type: name their groups, as in "
            f"distribution={{'instance_groups': [{str(next(iter(groups)))!r}], …}}; the other "
            "hosts run the script too, once each, as no rank."
        )
        found.append(Problem("instance_groups", list(groups), allowed))
    return found


def instance_groups(spec: JobSpec) -> tuple[InstanceGroup, ...]:
    """The job's groups with their hosts: algo-1 is in the first."""
    found, first = [], 1
    for group in spec.groups:
        count = group["InstanceCount"]
        hosts = tuple(f"algo-{number}" for number in range(first, first + count))
        found.append(InstanceGroup(group["InstanceGroupName"], group["InstanceType"], hosts))
        first += count
    return tuple(found)


def ranked_groups(spec: JobSpec) -> tuple[InstanceGroup, ...]:
    """Those on whose hosts the ranks run."""
    named, groups = distribution_groups(spec), instance_groups(spec)
    return tuple(group for group in groups if group.name in named) or groups


def distribution_groups(spec: JobSpec) -> list[str]:
    """The groups on whose hosts the ranks run; none named: on all."""
    names = (spec.distribution or {}).get("instance_groups")
    return [str(name) for name in names] if isinstance(names, list) else []


def _other(spec: JobSpec) -> dict[str, Any]:
    """Settings that SageMaker's own containers know too."""
    groups = distribution_groups(spec)
    asked = (spec.distribution or {}).get("torch_distributed") == {"enabled": True}
    found: dict[str, Any] = {GROUPS_SETTING: groups} if groups else {}
    return found | ({"sagemaker_torch_distributed_enabled": True} if asked else {})


def environment_problems(spec: JobSpec) -> list[Problem]:
    """What of a job's environment trcomp sets itself, or could not read."""
    own = {*OWN_VARIABLES, *(flag.name for flag in flags.JOB_ONLY)}
    found = [
        Problem("environment", name, "trcomp sets this variable itself.")
        for name in spec.environment
        if name in own
    ]
    for read in (*(flag.get for flag in flags.ALL), wanted_devices):
        try:
            read(spec.environment)
        except SpecError as error:
            found += error.problems
    return found
