"""The words of a job out of what DescribeTrainingJob says of it: `sagemaker_fields` backwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trcomp.backends.sagemaker_fields import FIELDS
from trcomp.backends.sagemaker_request import CODE_CHANNEL
from trcomp.config import TrainingCompilerConfig
from trcomp.contract import ARGUMENTS_SETTING, GROUPS_SETTING, decoded
from trcomp.errors import Problem, SpecError
from trcomp.inputs import of_form

_COMPILER = "sagemaker_training_compiler_"


def to_words(job: Mapping[str, Any]) -> dict[str, Any]:
    """The words of a job.

    Args:
        job: A request of CreateTrainingJob, or the answer of DescribeTrainingJob.

    Raises:
        SpecError: It runs no script.
    """
    words = {
        field.word: value
        for field in FIELDS
        if field.value is None and (value := _at(job, field.path)) is not None
    }
    del words["job_name"]
    for word in ("experiment_config", "disable_profiler"):
        words.pop(word, None)
    resources, algorithm = job["ResourceConfig"], job["AlgorithmSpecification"]
    chosen = "instance_groups" in words or "instance_preferences" in words
    plain = {
        "image_uri": algorithm.get("TrainingImage"),
        "input_mode": algorithm.get("TrainingInputMode"),
        "instance_type": None if chosen else resources.get("InstanceType"),
        "instance_count": None if chosen else resources.get("InstanceCount"),
        "volume_size": resources.get("VolumeSizeInGB"),
        "max_run": _at(job, "StoppingCondition.MaxRuntimeInSeconds"),
        "environment": job.get("Environment"),
        "output_path": job["OutputDataConfig"]["S3OutputPath"],
        "disable_output_compression": job["OutputDataConfig"].get("CompressionType") == "NONE"
        or None,
        "debugger_hook_config": job.get("DebugHookConfig"),
    }
    words |= {word: value for word, value in plain.items() if value is not None}
    settings = {k: decoded(v) for k, v in job.get("HyperParameters", {}).items()}
    own = [name for name in settings if name.startswith("sagemaker_")]
    words["hyperparameters"] = {k: v for k, v in settings.items() if k not in own}
    words |= _settings({name: settings[name] for name in own})
    words["inputs"] = {}
    for channel in job.get("InputDataConfig", ()):
        if channel["ChannelName"] == CODE_CHANNEL:
            words["source_dir"] = _at(channel, "DataSource.S3DataSource.S3Uri")
        else:
            words["inputs"][channel["ChannelName"]] = of_form(channel)
    if not words.get("entry_point") or not words.get("source_dir"):
        allowed = (
            "it names no script: trcomp did not start it, nor SageMaker's framework estimators."
        )
        raise SpecError([Problem("training_job_name", job["TrainingJobName"], allowed)])
    return words


def _settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What settings, which are hyperparameters named sagemaker_*, say in words."""
    words = {
        "entry_point": settings.get("sagemaker_program"),
        "source_dir": settings.get("sagemaker_submit_directory"),
        "arguments": settings.get(ARGUMENTS_SETTING),
        "container_log_level": settings.get("sagemaker_container_log_level"),
    }
    if (enabled := settings.get(f"{_COMPILER}enabled")) is not None:
        words["compiler_config"] = TrainingCompilerConfig(
            enabled=enabled,
            debug=settings.get(f"{_COMPILER}debug_mode", False),
            cuda_to_xla=settings.get(f"{_COMPILER}cuda_to_xla", True),
            cache=settings.get(f"{_COMPILER}cache"),
            profile_steps=settings.get(f"{_COMPILER}profile_steps"),
        )
    distribution: dict[str, Any] = {}
    for key, name in _MECHANISMS.items():
        if settings.get(name):
            distribution[key] = {"enabled": True}
    if settings.get(GROUPS_SETTING):
        distribution["instance_groups"] = settings[GROUPS_SETTING]
    words["distribution"] = distribution or None
    return {word: value for word, value in words.items() if value is not None}


_MECHANISMS = {
    "pytorchxla": "sagemaker_pytorch_xla_multi_worker_enabled",
    "torch_distributed": "sagemaker_torch_distributed_enabled",
}


def _at(values: Mapping[str, Any], path: str) -> Any:
    found: Any = values
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
