"""A job in SageMaker's own SDKs: SDK v3's ModelTrainer of it, and what SDK v2's estimators need."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trcomp.backends import git, sagemaker_plan, sessions
from trcomp.backends.sagemaker_fields import FIELDS
from trcomp.backends.sagemaker_submit import upload
from trcomp.backends.settings import compiler_settings
from trcomp.config import TrainingCompilerConfig
from trcomp.contract import reserved
from trcomp.errors import MissingExtraError, Problem, SpecError
from trcomp.rules import LOCAL_TYPES

if TYPE_CHECKING:
    from trcomp.estimator import Estimator, Inputs
    from trcomp.spec import JobSpec

_NAME_SETTING = "sagemaker_job_name"
_COMPUTE = {"EnableManagedSpotTraining": "enable_managed_spot_training"}
_WITH = {
    "AlgorithmSpecification.MetricDefinitions": ("with_metric_definitions", "MetricDefinition"),
    "TensorBoardOutputConfig": ("with_tensorboard_output_config", "TensorBoardOutputConfig"),
    "RetryStrategy": ("with_retry_strategy", "RetryStrategy"),
    "RemoteDebugConfig": ("with_remote_debug_config", "RemoteDebugConfig"),
    "InfraCheckConfig": ("with_infra_check_config", "InfraCheckConfig"),
    "SessionChainingConfig": ("with_session_chaining_config", "SessionChainingConfig"),
}
"""Fields of the request that ModelTrainer takes by a method, which takes a shape."""

_SHAPES = {
    "AlgorithmSpecification.TrainingImageConfig": ("training_image_config", "TrainingImageConfig"),
    "StoppingCondition": ("stopping_condition", "StoppingCondition"),
    "OutputDataConfig": ("output_data_config", "OutputDataConfig"),
    "CheckpointConfig": ("checkpoint_config", "CheckpointConfig"),
    "ModelPackageConfig": ("model_package_config", "ModelPackageConfig"),
    "InputDataConfig": ("input_data_config", "Channel"),
    "Tags": ("tags", "Tag"),
}
"""Fields that its constructor takes, by word, as a shape or a list of them."""

_VALUES = {
    "AlgorithmSpecification.TrainingImage": "training_image",
    "AlgorithmSpecification.AlgorithmName": "algorithm_name",
    "AlgorithmSpecification.TrainingInputMode": "training_input_mode",
    "RoleArn": "role",
    "Environment": "environment",
}
"""Fields that its constructor takes as they are."""

_NETWORKING = {
    "VpcConfig.Subnets": "subnets",
    "VpcConfig.SecurityGroupIds": "security_group_ids",
    "EnableNetworkIsolation": "enable_network_isolation",
    "EnableInterContainerTrafficEncryption": "enable_inter_container_traffic_encryption",
}
_OWN = ("TrainingJobName", "ResourceConfig", "HyperParameters", *_COMPUTE)


def sagemaker_kwargs(
    config: TrainingCompilerConfig | None,
    *,
    image_uri: str,
    hyperparameters: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The words by which an estimator of SageMaker's SDK v2 runs its script in trcomp's container.

    ``PyTorch("train.py", role=…, instance_type=…, **sagemaker_kwargs(config, image_uri=…))``. The
    estimator's own compiler_config and distribution are for other containers: leave them out.

    Args:
        config: As for trcomp's own estimators.
        image_uri: An image with trcomp in it, and boto3, by which it fetches the code.
        hyperparameters: The script's own.
        environment: The job's own.
    """
    cache = None if config is None or config.cache is None else os.fspath(config.cache)
    settings = compiler_settings(config, cache)
    # SDK v2 says by itself how much is logged.
    own = {k: v for k, v in reserved(settings).items() if not k.endswith("log_level")}
    return {
        "image_uri": image_uri,
        "hyperparameters": {**(hyperparameters or {}), **own},
        "environment": dict(environment or {}),
    }


def to_model_trainer(
    estimator: Estimator, inputs: Inputs = None, sagemaker_session: Any = None
) -> Any:
    """The ModelTrainer of SageMaker's SDK v3 for an estimator's job. The code is uploaded.

    Each of its `train` calls names a job of its own; in a pipeline, its step does.

    Args:
        estimator: What the job is.
        inputs: As for `Estimator.fit`.
        sagemaker_session: SDK v3's session, or its PipelineSession; None: the SDK's own.

    Raises:
        SpecError: The job has words that ModelTrainer has no setting for.
        MissingExtraError: The SDK is not installed.
        BackendUnavailableError: AWS cannot be reached, or refuses.
    """
    try:
        from sagemaker.core import shapes
        from sagemaker.core.training import configs
        from sagemaker.train import ModelTrainer
    except ImportError:
        raise MissingExtraError("sagemaker", "sagemaker", "to_model_trainer") from None
    spec = estimator.to_spec(inputs)
    if spec.instance_type in LOCAL_TYPES:
        allowed = "a type of SageMaker's, ml.*, is needed."
        raise SpecError([Problem("instance_type", spec.instance_type, allowed)])
    with sessions.through(estimator.session), git.cloned(spec) as here:
        plan = sagemaker_plan.plan(here)
        request, leftover = plan.request, _leftover(spec, plan.request)
        if leftover:
            allowed = "ModelTrainer has no setting for it; leave it out, or start the job by fit."
            raise SpecError([Problem(word, _value(request, at), allowed) for word, at in leftover])
        if here.source_uri is None:
            upload(plan)
    words: dict[str, Any] = {
        word: value for at, word in _VALUES.items() if (value := _value(request, at)) is not None
    }
    for at, (word, shape) in _SHAPES.items():
        if (value := _value(request, at)) is not None:
            words[word] = _shaped(getattr(shapes, shape), value)
    networking = {w: v for at, w in _NETWORKING.items() if (v := _value(request, at)) is not None}
    spot = {w: request[at] for at, w in _COMPUTE.items() if at in request}
    settings = {k: v for k, v in request["HyperParameters"].items() if k != _NAME_SETTING}
    trainer = ModelTrainer(
        **words,
        sagemaker_session=sagemaker_session,
        base_job_name=estimator.base_job_name,
        compute=configs.Compute(**_snake(request["ResourceConfig"]), **spot),
        networking=configs.Networking(**networking) if networking else None,
        hyperparameters=settings,
    )
    for at, (method, shape) in _WITH.items():
        if (value := _value(request, at)) is not None:
            trainer = getattr(trainer, method)(_shaped(getattr(shapes, shape), value))
    return trainer


def _leftover(spec: JobSpec, request: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The job's words, with their fields, that ModelTrainer cannot say."""
    said = (*_VALUES, *_SHAPES, *_WITH, *_NETWORKING, *_OWN)
    return [
        (field.word, field.path)
        for field in FIELDS
        if field.word in spec.managed
        and _value(request, field.path) is not None
        and not any(field.path == at or field.path.startswith(f"{at}.") for at in said)
    ]


def _value(request: Mapping[str, Any], path: str) -> Any:
    value: Any = request
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _shaped(shape: Any, value: Any) -> Any:
    """A value in the request's own form as a shape of SDK v3, or a list of them."""
    if isinstance(value, list):
        return [shape(**_snake(item)) for item in value]
    return shape(**_snake(value))


def _snake(value: Any) -> Any:
    """The request's own form with SDK v3's spelling of names: VolumeSizeInGB, volume_size_in_gb."""
    if isinstance(value, Mapping):
        return {
            re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower(): _snake(item)
            for name, item in value.items()
        }
    return [_snake(item) for item in value] if isinstance(value, list) else value
