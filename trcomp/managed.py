"""The words of a job that only a managed service such as SageMaker has a use for."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, with_config

# Not typing's: before Python 3.12 pydantic cannot read that one's fields.
from typing_extensions import TypedDict


# Strict: "3600" is no number of seconds, and 1 is no switch.
@with_config(ConfigDict(strict=True, extra="forbid"))
class ManagedWords(TypedDict, total=False):
    """Each is spelt as in SageMaker's SDK v2. A local job takes most of them, and uses none."""

    image_uri: str
    """The container image, which must have trcomp in it: SageMaker starts its command `train`."""
    container_entry_point: list[str]
    """Started instead of `train`."""
    container_arguments: list[str]
    training_repository_access_mode: str
    """``Vpc`` if the image is in a private registry, which only the job's subnets reach."""
    training_repository_credentials_provider_arn: str
    """The Lambda function that gives the private registry's password."""

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
    metric_definitions: list[dict[str, str]]
    """``[{"Name": "loss", "Regex": "loss ([0-9.]+)"}]``: CloudWatch finds them in the lines."""
    enable_sagemaker_metrics: bool
    enable_remote_debug: bool
    """AWS Systems Manager may open a shell in the container."""
    enable_infra_check: bool
    """The instances are checked before training."""
    enable_session_tag_chaining: bool
    experiment_config: dict[str, str]
    """``ExperimentName``, ``TrialName``, …; usually a word of `fit`."""


NAMES = tuple(ManagedWords.__annotations__)
"""Every such word."""
