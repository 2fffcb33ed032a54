"""Each word of a job and the field of CreateTrainingJob that it becomes, one row per word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trcomp import flags
from trcomp.inputs import to_channel
from trcomp.managed import NAMES
from trcomp.spec import JobSpec

DEFAULT_MAX_RUN_SECONDS = 24 * 60 * 60


@dataclass(frozen=True)
class Field:
    """A word of a job and the field of the request that it becomes."""

    word: str
    path: str
    value: Callable[[JobSpec], Any] | None = None
    """Gives the field's value; None: the word's own. A field without a value is not sent."""
    note: str = ""
    """For the reader of the table in the docs."""


def word(spec: JobSpec, name: str) -> Any:
    """The value of a word, wherever the spec keeps it."""
    return spec.managed.get(name) if name in NAMES else getattr(spec, name)


def _tags(spec: JobSpec) -> list[dict[str, str]]:
    tags = spec.managed.get("tags", {})
    if isinstance(tags, dict):
        return [{"Key": key, "Value": value} for key, value in tags.items()]
    return tags


def _channels(spec: JobSpec) -> list[dict[str, Any]]:
    return [to_channel(item) for item in spec.inputs]


def _compression(spec: JobSpec) -> str | None:
    return "NONE" if spec.managed.get("disable_output_compression") else None


def _instance_type(spec: JobSpec) -> str | None:
    chosen = spec.managed.get("instance_preferences") or spec.groups
    return None if chosen else spec.instance_type


def _instance_count(spec: JobSpec) -> int | None:
    """Groups have counts of their own, and preferences may have."""
    preferences = spec.managed.get("instance_preferences", [])
    own = spec.groups or any("InstanceCount" in item for item in preferences)
    return None if own else spec.instance_count


def _elsewhere(spec: JobSpec) -> None:
    """A word that `request` itself puts where it belongs."""


def _defaulting(name: str, default: object) -> Callable[[JobSpec], Any]:
    return lambda spec: spec.managed.get(name, default)


_ALGORITHM = "AlgorithmSpecification"
_IMAGE = f"{_ALGORITHM}.TrainingImageConfig"
_SETTING = "HyperParameters.sagemaker_"
_CHOOSES = "chooses a frozen image"

FIELDS = (
    Field("job_name", "TrainingJobName", note="`fit(job_name=…)`"),
    Field("role", "RoleArn"),
    Field("image_uri", f"{_ALGORITHM}.TrainingImage", _elsewhere),
    Field("framework_version", f"{_ALGORITHM}.TrainingImage", _elsewhere, _CHOOSES),
    Field("pytorch_version", f"{_ALGORITHM}.TrainingImage", _elsewhere, _CHOOSES),
    Field("transformers_version", f"{_ALGORITHM}.TrainingImage", _elsewhere, _CHOOSES),
    Field("py_version", f"{_ALGORITHM}.TrainingImage", _elsewhere, _CHOOSES),
    Field("algorithm_arn", f"{_ALGORITHM}.AlgorithmName", note="in place of an image"),
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
    Field("instance_type", "ResourceConfig.InstanceType", _instance_type),
    Field("instance_count", "ResourceConfig.InstanceCount", _instance_count),
    Field("instance_groups", "ResourceConfig.InstanceGroups", note="in place of the two above"),
    Field(
        "instance_preferences",
        "ResourceConfig.InstancePreferences",
        note="in place of `instance_type`: the first that SageMaker has",
    ),
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
    Field("max_pending", "StoppingCondition.MaxPendingTimeInSeconds"),
    Field("use_spot_instances", "EnableManagedSpotTraining"),
    Field("max_retry_attempts", "RetryStrategy.MaximumRetryAttempts"),
    Field("subnets", "VpcConfig.Subnets"),
    Field("security_group_ids", "VpcConfig.SecurityGroupIds"),
    Field("enable_network_isolation", "EnableNetworkIsolation"),
    Field("encrypt_inter_container_traffic", "EnableInterContainerTrafficEncryption"),
    Field("inputs", "InputDataConfig", _channels, "`fit(inputs=…)`"),
    Field("model_uri", "InputDataConfig", _elsewhere, "a channel more"),
    Field("model_channel_name", "InputDataConfig", _elsewhere, "its name, by default `model`"),
    Field("code_location", "InputDataConfig", _elsewhere, "where the channel `code` is kept"),
    Field("output_kms_key", "OutputDataConfig.KmsKeyId"),
    Field("disable_output_compression", "OutputDataConfig.CompressionType", _compression),
    Field("output_path", "OutputDataConfig.S3OutputPath", _elsewhere),
    Field("checkpoint_s3_uri", "CheckpointConfig.S3Uri"),
    Field("checkpoint_local_path", "CheckpointConfig.LocalPath"),
    Field("environment", "Environment"),
    Field("max_restarts", "Environment", _elsewhere, f"`{flags.MAX_RESTARTS.name}`"),
    Field("tags", "Tags", _tags),
    Field("enable_remote_debug", "RemoteDebugConfig.EnableRemoteDebug"),
    Field("enable_infra_check", "InfraCheckConfig.EnableInfraCheck"),
    Field("enable_session_tag_chaining", "SessionChainingConfig.EnableSessionTagChaining"),
    Field("profiler_config", "ProfilerConfig"),
    Field("disable_profiler", "ProfilerConfig.DisableProfiler"),
    Field("profiler_rules", "ProfilerRuleConfigurations", note="also out of `rules`"),
    Field("debugger_hook_config", "DebugHookConfig", _elsewhere),
    Field("rules", "DebugRuleConfigurations"),
    Field("tensorboard_output_config", "TensorBoardOutputConfig"),
    Field("mlflow_config", "MlflowConfig"),
    Field("model_package_config", "ModelPackageConfig"),
    Field("experiment_config", "ExperimentConfig", note="`fit(experiment_config=…)`"),
    Field("hyperparameters", "HyperParameters", _elsewhere, "each value as JSON"),
    Field("arguments", f"{_SETTING}script_arguments", _elsewhere, "a JSON list"),
    Field("entry_point", f"{_SETTING}program", _elsewhere),
    Field("source_dir", f"{_SETTING}submit_directory", _elsewhere, "the channel `code`"),
    Field("dependencies", f"{_SETTING}submit_directory", _elsewhere, "part of the archive"),
    Field("git_config", f"{_SETTING}submit_directory", _elsewhere, "cloned at submission"),
    Field("container_log_level", f"{_SETTING}container_log_level", _elsewhere),
    Field("compiler_config", f"{_SETTING}training_compiler_enabled", _elsewhere, "and its kin"),
    Field("distribution", f"{_SETTING}pytorch_xla_multi_worker_enabled", _elsewhere),
)
"""Each word that a request is made of."""

NOT_SENT = {
    "ResourceConfig.SelectedInstanceType": "SageMaker's answer alone has it.",
    "ResourceConfig.SelectedInstanceCount": "SageMaker's answer alone has it.",
    "ServerlessJobConfig": "Such a job runs a recipe of SageMaker's own: no container, no script.",
}
"""Fields that no word becomes, and why."""
