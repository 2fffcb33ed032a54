"""The words of a job that only a managed service such as SageMaker has a use for."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, with_config

# Not typing's: before Python 3.12 pydantic cannot read that one's fields.
from typing_extensions import TypedDict

from trcomp import rules


# Strict: "3600" is no number of seconds, and 1 is no switch.
@with_config(ConfigDict(strict=True, extra="forbid"))
class ManagedWords(TypedDict, total=False):
    """Each is spelt as in SageMaker's SDK v2. A local job takes most of them, and uses none."""

    image_uri: str
    """The container image. SageMaker starts its command `train`, which must be trcomp's;
    containers on this machine find trcomp mounted where the image lacks it."""
    algorithm_arn: str
    """An algorithm registered in SageMaker, in place of image_uri; its image must have trcomp."""
    framework_version: str
    """A version of PyTorch that chooses, with a compiler_config and without image_uri, one of the
    Training Compiler's frozen images."""
    pytorch_version: str
    """The same, as HuggingFace spells it; needs transformers_version."""
    transformers_version: str
    py_version: str
    container_entry_point: list[str]
    """Started instead of `train`."""
    container_arguments: list[str]
    training_repository_access_mode: str
    """``Vpc`` if the image is in a private registry, which only the job's subnets reach."""
    training_repository_credentials_provider_arn: str
    """The Lambda function that gives the private registry's password."""

    instance_groups: list[dict[str, Any]]
    """Hosts of several types, in the request's own form or as SDK v2's InstanceGroup; in place of
    instance_type and instance_count."""
    instance_preferences: list[dict[str, Any]]
    """Types of which SageMaker takes the first that it has, in place of instance_type."""
    volume_size: int
    """Gigabytes of disk per host; default 30."""
    volume_kms_key: str
    """Encrypts that disk."""
    keep_alive_period_in_seconds: int
    """How long the instances stay warm for the next job of this kind; they cost as if they ran."""
    training_plan: str
    """ARN of reserved capacity."""
    instance_placement_config: dict[str, Any]
    """Placement on UltraServers, in the request's own form."""

    max_run: int
    """Seconds after which SageMaker stops the job; default 86400, a day."""
    use_spot_instances: bool
    max_wait: int
    """Seconds for training and waiting for spot instances together; needed with them."""
    max_pending: int
    """Seconds for which the job may wait for instances; default: SageMaker's."""
    max_retry_attempts: int
    """How often SageMaker starts the job anew after an error of its own."""

    subnets: list[str]
    """The VPC's subnets in which the hosts are; needs security_group_ids."""
    security_group_ids: list[str]
    enable_network_isolation: bool
    """The container reaches no network: no pip, no S3. The code and channels arrive as ever."""
    encrypt_inter_container_traffic: bool

    input_mode: str
    """``File`` (the default), ``FastFile`` or ``Pipe``; a channel's own input_mode wins."""
    code_location: str
    """``s3://bucket/prefix`` for the code; default: under output_path."""
    output_kms_key: str
    """Encrypts the results, and the code beside them."""
    disable_output_compression: bool
    """Results are left as files instead of tar.gz archives."""

    tags: dict[str, str] | list[dict[str, str]]
    """``{"team": "vision"}``, or SageMaker's list of Key and Value."""
    metric_definitions: Annotated[
        list[dict[str, str]],
        AfterValidator(
            lambda given: rules.checked(given, rules.metric_definitions_problems(given))
        ),
    ]
    """``[{"Name": "loss", "Regex": "loss ([0-9.]+)"}]``: CloudWatch finds them in the lines."""
    enable_sagemaker_metrics: bool
    enable_remote_debug: bool
    """AWS Systems Manager may open a shell in the container."""
    enable_infra_check: bool
    """The instances are checked before training."""
    enable_session_tag_chaining: bool
    profiler_config: dict[str, Any]
    """SageMaker's profiler, off unless it is given; in the request's own form, as are the next."""
    disable_profiler: bool
    profiler_rules: list[dict[str, Any]]
    debugger_hook_config: dict[str, Any] | bool
    """The debugger's hook, off unless it is given; S3OutputPath is the job's own by default."""
    rules: list[dict[str, Any]]
    """The debugger's rules; SDK v2's Rule and ProfilerRule are taken too."""
    tensorboard_output_config: dict[str, Any]
    """Where TensorBoard's files are kept while the job runs."""
    mlflow_config: dict[str, Any]
    model_package_config: dict[str, Any]
    """Registers the model that the job makes."""
    experiment_config: dict[str, str]
    """``ExperimentName``, ``TrialName``, …; usually a word of `fit`."""


NAMES = tuple(ManagedWords.__annotations__)
"""Every such word."""
