"""The CreateTrainingJob request of a job: one row per word, and what SageMaker would refuse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from trcomp import limits, s3
from trcomp.backends import bundle
from trcomp.backends.own_image import account
from trcomp.backends.sagemaker_fields import DEFAULT_MAX_RUN_SECONDS, FIELDS, word
from trcomp.backends.sagemaker_image import environment, image, image_problems
from trcomp.backends.settings import group_problems, settings
from trcomp.contract import Contract, to_hyperparameters
from trcomp.env import executables
from trcomp.errors import Problem
from trcomp.inputs import local_path, put
from trcomp.spec import JobSpec, copied

SHAPE = "CreateTrainingJobRequest"
CODE_CHANNEL = "code"
"""The channel that brings the code: the container itself needs no access to S3 for it."""
_CODE = f"/opt/ml/input/data/{CODE_CHANNEL}"

_SHOWN = 80
"""Characters of a value that is refused."""


@dataclass(frozen=True)
class Site:
    """What a request needs to know beside the job itself."""

    region: str | None
    code_uri: str


def request(spec: JobSpec, site: Site) -> dict[str, Any]:
    """The whole request. It is not checked: see `problems_of`."""
    values: dict[str, Any] = {}
    for field in FIELDS:
        value = word(spec, field.word) if field.value is None else field.value(spec)
        if value not in (None, [], {}, False):
            put(values, field.path, copied(value))
    put(values, "AlgorithmSpecification.TrainingImage", image(spec, site.region))
    if values["AlgorithmSpecification"]["TrainingImage"] is None:
        del values["AlgorithmSpecification"]["TrainingImage"]
    if variables := environment(spec, site.region):
        values["Environment"] = variables
    values["HyperParameters"] = _hyperparameters(spec, site)
    if hook := _hook(spec, site.region):
        values["DebugHookConfig"] = hook
    put(values, "OutputDataConfig.S3OutputPath", results_base(spec, site.region))
    code: dict[str, Any] = {"ChannelName": CODE_CHANNEL, "InputMode": "File"}
    source = {"S3DataType": "S3Prefix", "S3Uri": site.code_uri}
    code["DataSource"] = {"S3DataSource": source | {"S3DataDistributionType": "FullyReplicated"}}
    values.setdefault("InputDataConfig", []).append(code)
    return values


def results_base(spec: JobSpec, region: str | None) -> str:
    """Where results go: output_path, or the bucket that SageMaker's SDK uses by default."""
    if spec.output_path is not None:
        return spec.output_path.rstrip("/")
    return f"s3://sagemaker-{region or 'REGION'}-{account(spec) or 'ACCOUNT'}"


def code_uri(spec: JobSpec, region: str | None, digest: str) -> str:
    """Where the code of this digest is kept, whatever job it is for; or where it lies already."""
    if spec.source_uri is not None:
        return spec.source_uri
    base = spec.managed.get("code_location") or results_base(spec, region)
    return f"{base.rstrip('/')}/trcomp/code/{digest}/{bundle.NAME}"


def problems_of(spec: JobSpec, site: Site) -> Iterator[Problem]:
    """Everything that SageMaker would refuse about a job, in the job's own words."""
    told = set()
    for problem in _own_problems(spec, site):
        told.add(problem.field)
        yield problem
    # The words' own rules have told of each hyperparameter and variable, and reveal less; where
    # the code goes follows from words that have been checked.
    elsewhere = ("HyperParameters[", "Environment[", f"InputDataConfig[{len(spec.inputs)}]")
    for fault in limits.faults(SHAPE, request(spec, site)):
        name = _word_of(fault.path)
        if name not in told and not fault.path.startswith(elsewhere):
            yield Problem(name, _shortened(fault.got), f"{fault.allowed} (Field {fault.path}.)")


def _own_problems(spec: JobSpec, site: Site) -> Iterator[Problem]:
    """What the service's model does not say."""
    if account(spec) is None:
        allowed = "the ARN of the IAM role that the job acts as, arn:aws:iam::ACCOUNT:role/NAME."
        if spec.role and "/" not in spec.role and ":" not in spec.role:
            allowed += f" `aws iam get-role --role-name {spec.role}` shows it."
        yield Problem("role", spec.role, f"SageMaker needs {allowed}")
    yield from image_problems(spec, site.region)
    yield from group_problems(spec)
    yield from _preference_problems(spec)
    yield from _place_problems(spec)
    yield from _time_problems(spec)
    for item in spec.inputs:
        if item.channel == CODE_CHANNEL:
            yield Problem("inputs", item.channel, "this channel brings the code; choose another.")
        mode = item.input_mode or spec.managed.get("input_mode", "File")
        if item.s3_data_type == "AugmentedManifestFile" and mode != "Pipe":
            field = f"inputs[{item.channel!r}].input_mode"
            yield Problem(field, mode, "an augmented manifest is streamed: 'Pipe' is needed.")
    cache = spec.compiler_config.cache if spec.compiler_config else None
    place = None if cache is None else str(cache)
    taken = place is None or place == executables.OFF or place.startswith("/") or s3.is_url(place)
    if not taken:
        allowed = "a job elsewhere takes s3://bucket/prefix, an absolute path there, or 'off'."
        yield Problem("compiler_config.cache", place, allowed)


def _preference_problems(spec: JobSpec) -> Iterator[Problem]:
    """What does not go together, by SageMaker's description of the field."""
    preferences = spec.managed.get("instance_preferences")
    others = ("instance_groups", "instance_placement_config", "use_spot_instances")
    for other in others if preferences else ():
        if spec.managed.get(other):
            allowed = "it does not go with instance_preferences; leave out one of the two."
            yield Problem(other, spec.managed.get(other), allowed)
    counted = ["InstanceCount" in item for item in preferences or ()]
    if any(counted) and not all(counted):
        allowed = "either all of them have an InstanceCount or none has."
        yield Problem("instance_preferences", preferences, allowed)


def _place_problems(spec: JobSpec) -> Iterator[Problem]:
    places = {"output_path": spec.output_path, "checkpoint_s3_uri": spec.checkpoint_s3_uri}
    places |= {"code_location": spec.managed.get("code_location")}
    places |= {f"inputs[{item.channel!r}]": item.uri for item in spec.inputs}
    for field, uri in places.items():
        if uri is None:
            continue
        if local_path(uri) is None and not s3.is_url(uri):
            continue  # A file system or a dataset.
        if not s3.is_url(uri):
            local, allowed = uri.removeprefix("file://"), "SageMaker needs s3://bucket/prefix."
            if field.startswith("inputs"):
                allowed += f" `aws s3 sync {local} s3://bucket/prefix` copies a directory."
            yield Problem(field, local, allowed)
        elif not field.startswith("inputs"):
            yield from (Problem(field, uri, fault) for fault in s3.faults(uri))


def _time_problems(spec: JobSpec) -> Iterator[Problem]:
    spot, max_wait = spec.managed.get("use_spot_instances"), spec.managed.get("max_wait")
    max_run = spec.managed.get("max_run", DEFAULT_MAX_RUN_SECONDS)
    if spot and max_wait is None:
        yield Problem("max_wait", None, f"spot instances need it, {max_run} (max_run) or more.")
    elif spot and max_wait is not None and max_wait < max_run:
        yield Problem("max_wait", max_wait, f"{max_run} (max_run) or more is needed.")
    elif not spot and max_wait is not None:
        yield Problem("max_wait", max_wait, "it is for use_spot_instances=True; leave it out.")
    if spot and spec.managed.get("keep_alive_period_in_seconds"):
        allowed = "spot instances cannot be kept; leave out one of the two."
        yield Problem(
            "keep_alive_period_in_seconds", spec.managed["keep_alive_period_in_seconds"], allowed
        )


def _hyperparameters(spec: JobSpec, site: Site) -> dict[str, str]:
    cache = spec.compiler_config.cache if spec.compiler_config else None
    name = PurePosixPath(s3.place(site.code_uri).prefix).name
    packed = name.endswith((".tar.gz", ".tgz"))
    submitted = f"{_CODE}/{name}" if packed else _CODE
    own = settings(spec, None if cache is None else str(cache), submitted)
    host = Contract(
        job_name=spec.job_name,
        hosts=("algo-1",),
        current_host="algo-1",
        hyperparameters=spec.hyperparameters,
        settings=own,
        instance_type=spec.instance_type,
    )
    region = {} if site.region is None else {"sagemaker_region": f'"{site.region}"'}
    return to_hyperparameters(host) | region


def _hook(spec: JobSpec, region: str | None) -> dict[str, Any]:
    """The debugger's hook, its results beside those of the job."""
    given = spec.managed.get("debugger_hook_config", False)
    if given is False:
        return {}
    return {"S3OutputPath": results_base(spec, region)} | ({} if given is True else given)


def _shortened(value: object) -> object:
    long = isinstance(value, str) and len(value) > _SHOWN
    return f"{str(value)[:_SHOWN]}…" if long else value


def _word_of(path: str) -> str:
    """The word that a field of the request comes from."""
    above = [
        field
        for field in FIELDS
        if path == field.path or path.startswith((f"{field.path}.", f"{field.path}["))
    ]
    return max(above, key=lambda field: len(field.path)).word if above else "request"
