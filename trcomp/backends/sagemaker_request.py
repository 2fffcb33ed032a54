"""The CreateTrainingJob request of a job: one row per word, and what SageMaker would refuse."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from trcomp import limits, s3
from trcomp.backends import bundle
from trcomp.backends.settings import settings
from trcomp.contract import Contract, to_hyperparameters
from trcomp.env import executables
from trcomp.errors import Problem
from trcomp.inputs import put, to_channel
from trcomp.managed import NAMES
from trcomp.spec import JobSpec

SHAPE = "CreateTrainingJobRequest"
CODE_CHANNEL = "code"
"""The channel that brings the code: the container itself needs no access to S3 for it."""
ARCHIVE = f"/opt/ml/input/data/{CODE_CHANNEL}/{bundle.NAME}"

_SHOWN = 80
"""Characters of a value that is refused."""
_ROLE = re.compile(r"arn:[^:]+:iam::(\d{12}):role/.+")


@dataclass(frozen=True)
class Site:
    """What a request needs to know beside the job itself."""

    region: str | None
    code_uri: str


@dataclass(frozen=True)
class Field:
    """A word of a job and the field of the request that it becomes."""

    word: str
    path: str
    value: Callable[[JobSpec], Any] | None = None
    """Gives the field's value; None: the word's own. A field without a value is not sent."""
    note: str = ""
    """For the reader of the table in the docs."""


def request(spec: JobSpec, site: Site) -> dict[str, Any]:
    """The whole request. It is not checked: see `problems_of`."""
    values: dict[str, Any] = {}
    for field in FIELDS:
        value = word(spec, field.word) if field.value is None else field.value(spec)
        if value not in (None, [], {}, False):
            put(values, field.path, value)
    values["HyperParameters"] = _hyperparameters(spec, site)
    put(values, "OutputDataConfig.S3OutputPath", results_base(spec, site.region))
    code: dict[str, Any] = {"ChannelName": CODE_CHANNEL, "InputMode": "File"}
    source = {"S3DataType": "S3Prefix", "S3Uri": site.code_uri}
    code["DataSource"] = {"S3DataSource": source | {"S3DataDistributionType": "FullyReplicated"}}
    values.setdefault("InputDataConfig", []).append(code)
    return values


def word(spec: JobSpec, name: str) -> Any:
    """The value of a word, wherever the spec keeps it."""
    return spec.managed.get(name) if name in NAMES else getattr(spec, name)


def results_base(spec: JobSpec, region: str | None) -> str:
    """Where results go: output_path, or the bucket that SageMaker's SDK uses by default."""
    if spec.output_path is not None:
        return spec.output_path.rstrip("/")
    return f"s3://sagemaker-{region or 'REGION'}-{account(spec) or 'ACCOUNT'}"


def account(spec: JobSpec) -> str | None:
    """The AWS account that the job's role belongs to, and so the job; None without a sound role."""
    match = _ROLE.fullmatch(spec.role or "")
    return match[1] if match else None


def code_uri(spec: JobSpec, region: str | None, digest: str) -> str:
    """Where the code of this digest is kept, whatever job it is for."""
    base = spec.managed.get("code_location") or results_base(spec, region)
    return f"{base.rstrip('/')}/trcomp/code/{digest}/{bundle.NAME}"


def problems_of(spec: JobSpec, site: Site) -> Iterator[Problem]:
    """Everything that SageMaker would refuse about a job, in the job's own words."""
    told = set()
    for problem in _own_problems(spec):
        told.add(problem.field)
        yield problem
    # The words' own rules have told of each hyperparameter and variable, and reveal less; where
    # the code goes follows from words that have been checked.
    elsewhere = ("HyperParameters[", "Environment[", f"InputDataConfig[{len(spec.inputs)}]")
    for fault in limits.faults(SHAPE, request(spec, site)):
        name = _word_of(fault.path)
        if name not in told and not fault.path.startswith(elsewhere):
            yield Problem(name, _shortened(fault.got), f"{fault.allowed} (Field {fault.path}.)")


def _own_problems(spec: JobSpec) -> Iterator[Problem]:
    """What the service's model does not say."""
    if account(spec) is None:
        allowed = "the ARN of the IAM role that the job acts as, arn:aws:iam::ACCOUNT:role/NAME."
        if spec.role and "/" not in spec.role and ":" not in spec.role:
            allowed += f" `aws iam get-role --role-name {spec.role}` shows it."
        yield Problem("role", spec.role, f"SageMaker needs {allowed}")
    if not spec.managed.get("image_uri"):
        allowed = "a container image with trcomp in it is needed: see docs/sagemaker.md."
        yield Problem("image_uri", None, allowed)
    yield from _place_problems(spec)
    yield from _time_problems(spec)
    for item in spec.inputs:
        if item.channel == CODE_CHANNEL:
            yield Problem("inputs", item.channel, "this channel brings the code; choose another.")
    cache = spec.compiler_config.cache if spec.compiler_config else None
    place = None if cache is None else str(cache)
    taken = place is None or place == executables.OFF or place.startswith("/") or s3.is_url(place)
    if not taken:
        allowed = "a job elsewhere takes s3://bucket/prefix, an absolute path there, or 'off'."
        yield Problem("compiler_config.cache", place, allowed)


def _place_problems(spec: JobSpec) -> Iterator[Problem]:
    places = {"output_path": spec.output_path, "checkpoint_s3_uri": spec.checkpoint_s3_uri}
    places |= {"code_location": spec.managed.get("code_location")}
    places |= {f"inputs[{item.channel!r}]": item.uri for item in spec.inputs}
    for field, uri in places.items():
        if uri is None:
            continue
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
    own = settings(spec, None if cache is None else str(cache), ARCHIVE)
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


def _tags(spec: JobSpec) -> list[dict[str, str]]:
    tags = spec.managed.get("tags", {})
    if isinstance(tags, dict):
        return [{"Key": key, "Value": value} for key, value in tags.items()]
    return tags


def _channels(spec: JobSpec) -> list[dict[str, Any]]:
    return [to_channel(item) for item in spec.inputs]


def _compression(spec: JobSpec) -> str | None:
    return "NONE" if spec.managed.get("disable_output_compression") else None


def _elsewhere(spec: JobSpec) -> None:
    """A word that `request` itself puts where it belongs."""


def _defaulting(name: str, default: object) -> Callable[[JobSpec], Any]:
    return lambda spec: spec.managed.get(name, default)


DEFAULT_MAX_RUN_SECONDS = 24 * 60 * 60
_ALGORITHM = "AlgorithmSpecification"
_IMAGE = f"{_ALGORITHM}.TrainingImageConfig"
_SETTING = "HyperParameters.sagemaker_"

FIELDS = (
    Field("job_name", "TrainingJobName", note="`fit(job_name=…)`"),
    Field("role", "RoleArn"),
    Field("image_uri", f"{_ALGORITHM}.TrainingImage"),
    Field("input_mode", f"{_ALGORITHM}.TrainingInputMode", _defaulting("input_mode", "File")),
    Field("metric_definitions", f"{_ALGORITHM}.MetricDefinitions"),
    Field("enable_sagemaker_metrics", f"{_ALGORITHM}.EnableSageMakerMetricsTimeSeries"),
    Field("container_entry_point", f"{_ALGORITHM}.ContainerEntrypoint"),
    Field("container_arguments", f"{_ALGORITHM}.ContainerArguments"),
    Field("training_repository_access_mode", f"{_IMAGE}.TrainingRepositoryAccessMode"),
    Field(
        "training_repository_credentials_provider_arn",
        f"{_IMAGE}.TrainingRepositoryAuthConfig.TrainingRepositoryCredentialsProviderArn",
    ),
    Field("instance_type", "ResourceConfig.InstanceType"),
    Field("instance_count", "ResourceConfig.InstanceCount"),
    Field("volume_size", "ResourceConfig.VolumeSizeInGB", _defaulting("volume_size", 30)),
    Field("volume_kms_key", "ResourceConfig.VolumeKmsKeyId"),
    Field("keep_alive_period_in_seconds", "ResourceConfig.KeepAlivePeriodInSeconds"),
    Field("training_plan", "ResourceConfig.TrainingPlanArn"),
    Field("instance_placement_config", "ResourceConfig.InstancePlacementConfig"),
    Field(
        "max_run",
        "StoppingCondition.MaxRuntimeInSeconds",
        _defaulting("max_run", DEFAULT_MAX_RUN_SECONDS),
    ),
    Field("max_wait", "StoppingCondition.MaxWaitTimeInSeconds"),
    Field("use_spot_instances", "EnableManagedSpotTraining"),
    Field("max_retry_attempts", "RetryStrategy.MaximumRetryAttempts"),
    Field("subnets", "VpcConfig.Subnets"),
    Field("security_group_ids", "VpcConfig.SecurityGroupIds"),
    Field("enable_network_isolation", "EnableNetworkIsolation"),
    Field("encrypt_inter_container_traffic", "EnableInterContainerTrafficEncryption"),
    Field("inputs", "InputDataConfig", _channels, "`fit(inputs=…)`"),
    Field("code_location", "InputDataConfig", _elsewhere, "where the channel `code` is kept"),
    Field("output_kms_key", "OutputDataConfig.KmsKeyId"),
    Field("disable_output_compression", "OutputDataConfig.CompressionType", _compression),
    Field("output_path", "OutputDataConfig.S3OutputPath", _elsewhere),
    Field("checkpoint_s3_uri", "CheckpointConfig.S3Uri"),
    Field("checkpoint_local_path", "CheckpointConfig.LocalPath"),
    Field("environment", "Environment"),
    Field("tags", "Tags", _tags),
    Field("enable_remote_debug", "RemoteDebugConfig.EnableRemoteDebug"),
    Field("enable_infra_check", "InfraCheckConfig.EnableInfraCheck"),
    Field("enable_session_tag_chaining", "SessionChainingConfig.EnableSessionTagChaining"),
    Field("experiment_config", "ExperimentConfig", note="`fit(experiment_config=…)`"),
    Field("hyperparameters", "HyperParameters", _elsewhere, "each value as JSON"),
    Field("entry_point", f"{_SETTING}program", _elsewhere),
    Field("source_dir", f"{_SETTING}submit_directory", _elsewhere, "the channel `code`"),
    Field("container_log_level", f"{_SETTING}container_log_level", _elsewhere),
    Field("compiler_config", f"{_SETTING}training_compiler_enabled", _elsewhere, "and its kin"),
    Field("distribution", f"{_SETTING}pytorch_xla_multi_worker_enabled", _elsewhere),
)
"""Each word that a request is made of."""
