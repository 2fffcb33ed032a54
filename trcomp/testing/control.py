"""SageMaker's API for training jobs, as strict as botocore's model of it and its own rules."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trcomp import limits
from trcomp.testing import channels
from trcomp.testing.cloudwatch import LogBehaviour
from trcomp.testing.host_files import instance_types
from trcomp.testing.training import TrainingJob

_SHAPE = "CreateTrainingJobRequest"
_SUMMARY = (
    "TrainingJobName",
    "TrainingJobArn",
    "CreationTime",
    "TrainingEndTime",
    "LastModifiedTime",
    "TrainingJobStatus",
    "SecondaryStatus",
    "WarmPoolStatus",
)
# docs.aws.amazon.com/sagemaker/latest/dg/train-warm-pools.html, "Matching training jobs".
_SAME_IN_WARM_POOL = (
    "RoleArn",
    "VpcConfig",
    "EnableNetworkIsolation",
    "EnableInterContainerTrafficEncryption",
    "SessionChainingConfig",
)
_SAME_RESOURCES = ("InstanceType", "InstanceCount", "InstanceGroups", "VolumeKmsKeyId")


class Refusal(Exception):
    """An answer that is an error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    def to_dict(self) -> dict[str, str]:
        """The answer's JSON."""
        return {"__type": self.code, "message": str(self)}


class ControlPlane:
    """The training jobs of one account in one region."""

    def __init__(self, directory: Path, account: str, region: str) -> None:
        self._directory = directory
        self._account = account
        self._region = region
        self._lock = threading.Lock()
        self.jobs: dict[str, TrainingJob] = {}
        self.no_capacity: set[str] = set()
        self.no_quota: set[str] = set()
        self.logs = LogBehaviour()

    def answer(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The answer to one call.

        Raises:
            Refusal: The answer is an error.
        """
        operations: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "CreateTrainingJob": self._create,
            "DescribeTrainingJob": lambda given: self._job(given).description(),
            "ListTrainingJobs": self._list,
            "StopTrainingJob": self._stop,
            "DeleteTrainingJob": self._delete,
        }
        if operation not in operations:
            raise Refusal("UnknownOperationException", f"{operation} is not part of the stand-in.")
        with self._lock:
            return operations[operation](arguments)

    def close(self) -> None:
        """End every job, at once."""
        for job in self.jobs.values():
            job.kill()

    def _create(self, request: dict[str, Any]) -> dict[str, Any]:
        _check(request, self._account)
        name = request["TrainingJobName"]
        arn = f"arn:aws:sagemaker:{self._region}:{self._account}:training-job/{name}"
        if name in self.jobs:
            raise Refusal("ResourceInUse", f"A training job of this name exists: {arn}")
        for kind in instance_types(request):
            if kind in self.no_quota:
                raise Refusal(
                    "ResourceLimitExceeded",
                    f"The account-level service limit '{kind} for training job usage' is 0 "
                    "Instances, with current utilization of 0 Instances and a request delta of 1 "
                    "Instances. Please use AWS Service Quotas to request an increase.",
                )
        for other in self.jobs.values():
            if _takes_over(request, other.description()):
                other.reuse(name)
                break
        self.jobs[name] = TrainingJob(
            request, arn, self._directory / name, self.no_capacity, self.logs
        )
        self.jobs[name].start()
        return {"TrainingJobArn": arn}

    def _job(self, arguments: dict[str, Any]) -> TrainingJob:
        try:
            return self.jobs[arguments["TrainingJobName"]]
        except KeyError:
            raise Refusal("ValidationException", "Requested resource not found.") from None

    def _list(self, arguments: dict[str, Any]) -> dict[str, Any]:
        wanted, pool = arguments.get("NameContains", ""), arguments.get("WarmPoolStatusEquals")
        found = [job.description() for name, job in self.jobs.items() if wanted in name]
        if pool is not None:
            found = [job for job in found if job.get("WarmPoolStatus", {}).get("Status") == pool]
        found.sort(key=lambda job: job["CreationTime"])
        if arguments.get("SortOrder") == "Descending":
            found.reverse()
        summaries = [{key: job[key] for key in _SUMMARY if key in job} for job in found]
        return {"TrainingJobSummaries": summaries[: arguments.get("MaxResults", 10)]}

    def _stop(self, arguments: dict[str, Any]) -> dict[str, Any]:
        job = self._job(arguments)
        if not job.stop():
            raise Refusal("ValidationException", "The request was rejected: the job has ended.")
        return {}

    def _delete(self, arguments: dict[str, Any]) -> dict[str, Any]:
        job = self._job(arguments)
        if job.description()["TrainingJobStatus"] in {"InProgress", "Stopping"}:
            raise Refusal("ValidationException", "The request was rejected: the job runs.")
        del self.jobs[arguments["TrainingJobName"]]
        return {}


def _takes_over(request: dict[str, Any], ended: dict[str, Any]) -> bool:
    """Whether a job can run on the instances that an ended one left warm."""
    wanted, left = request["ResourceConfig"], ended["ResourceConfig"]
    return (
        bool(wanted.get("KeepAlivePeriodInSeconds"))
        and ended.get("WarmPoolStatus", {}).get("Status") == "Available"
        and all(request.get(name) == ended.get(name) for name in _SAME_IN_WARM_POOL)
        and all(wanted.get(name) == left.get(name) for name in _SAME_RESOURCES)
    )


def _check(request: dict[str, Any], account: str) -> None:
    """Refuse what SageMaker refuses."""
    faults = [f"{fault.path}: {fault.allowed}" for fault in limits.faults(_SHAPE, request)]
    stopping = request.get("StoppingCondition", {})
    run, wait = stopping.get("MaxRuntimeInSeconds"), stopping.get("MaxWaitTimeInSeconds")
    spot = request.get("EnableManagedSpotTraining", False)
    resources = request.get("ResourceConfig", {})
    if spot and (wait is None or (run is not None and wait < run)):
        faults.append("MaxWaitTimeInSeconds must be at least MaxRuntimeInSeconds.")
    if not spot and wait is not None:
        faults.append("MaxWaitTimeInSeconds needs EnableManagedSpotTraining.")
    if spot and resources.get("KeepAlivePeriodInSeconds"):
        faults.append("KeepAlivePeriodInSeconds is not for spot training.")
    if not request.get("AlgorithmSpecification", {}).get("TrainingImage"):
        faults.append("AlgorithmSpecification.TrainingImage is needed.")
    ways = [
        w for w in ("InstanceType", "InstanceGroups", "InstancePreferences") if resources.get(w)
    ]
    if len(ways) != 1:
        faults.append("ResourceConfig: one of InstanceType, InstanceGroups, InstancePreferences.")
    if spot and resources.get("InstancePreferences"):
        faults.append("InstancePreferences are not for spot training.")
    groups = {group.get("InstanceGroupName") for group in resources.get("InstanceGroups") or []}
    for channel in request.get("InputDataConfig", []):
        source = channel.get("DataSource", {}).get("S3DataSource", {})
        manifest = source.get("S3DataType") == "AugmentedManifestFile"
        if manifest and channels.mode(request, channel) != "Pipe":
            faults.append("AugmentedManifestFile can only be used if the InputMode is Pipe.")
        if unknown := sorted({*source.get("InstanceGroupNames", [])} - groups):
            name = channel.get("ChannelName")
            faults.append(f"{name}: no InstanceGroups are called {unknown}.")
    names = [channel.get("ChannelName") for channel in request.get("InputDataConfig", [])]
    if len(set(names)) != len(names):
        faults.append("InputDataConfig: channels must have different names.")
    if request.get("OutputDataConfig", {}).get("CompressionType") == "NONE":
        faults.append("the stand-in leaves results as archives alone.")
    if faults:
        raise Refusal("ValidationException", f"{len(faults)} validation errors: {faults}")
    if f":{account}:" not in request["RoleArn"]:
        raise Refusal("ValidationException", f"Could not assume role {request['RoleArn']}.")
