"""A job's record out of what DescribeTrainingJob and ListTrainingJobs say of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from trcomp.backends.base import Failure, JobRecord, JobStatus, Transition
from trcomp.backends.results import failure_from
from trcomp.backends.sagemaker_plan import NAME

_STATES = {
    "Training": JobStatus.TRAINING,
    "Uploading": JobStatus.UPLOADING,
    "Stopping": JobStatus.STOPPING,
}
"""What SageMaker's secondary states mean here; of those before training each is Starting."""

_ENDS = {
    "Completed": JobStatus.COMPLETED,
    "Failed": JobStatus.FAILED,
    "Stopped": JobStatus.STOPPED,
}
_CONSOLES = {"aws-cn": "console.amazonaws.cn", "aws-us-gov": "console.amazonaws-us-gov.com"}
"""Of the partitions that are apart."""
_WINDING_UP = {JobStatus.STOPPING, JobStatus.UPLOADING}
LONGEST_REASON = 1024
"""Characters of a failure that SageMaker keeps."""
_OVER = {"MaxRuntimeExceeded": "max_run", "MaxWaitTimeExceeded": "max_wait"}
_REASON = re.compile(
    r"(?:(AlgorithmError|CapacityError|ClientError|InternalServerError): )?(.*?)"
    r"(?:, exit code: (\d+))?",
    re.DOTALL,
)


class SageMakerRecord(JobRecord):
    """What SageMaker says of a job."""

    arn: str
    billable_seconds: int | None = None

    @property
    def region(self) -> str:
        """The job's region."""
        return self.arn.split(":")[3]

    @property
    def place(self) -> str:
        """The job's page in the console."""
        domain = _CONSOLES.get(self.arn.split(":")[1], "console.aws.amazon.com")
        home = f"https://{self.region}.{domain}/sagemaker/home?region={self.region}"
        return f"{home}#/jobs/{self.name}"


def to_record(job: Mapping[str, Any]) -> SageMakerRecord:
    """The record of a job.

    Args:
        job: The answer of DescribeTrainingJob, or one entry of ListTrainingJobs.
    """
    name = job["TrainingJobName"]
    resources = job.get("ResourceConfig", {})
    secondary = job.get("SecondaryStatus", "")
    status = _ENDS.get(job["TrainingJobStatus"])
    places: dict[str, str] = {}
    results = job.get("OutputDataConfig", {})
    if status is not None and results.get("CompressionType", "GZIP") == "GZIP" and results:
        base = results["S3OutputPath"].rstrip("/")
        places["output"] = f"{base}/{name}/output/output.tar.gz"
    if status in {JobStatus.COMPLETED, JobStatus.STOPPED}:
        model = job.get("ModelArtifacts", {}).get("S3ModelArtifacts")
        places |= {"model": model} if model else {}
    return SageMakerRecord(
        name=name,
        backend=NAME,
        arn=job["TrainingJobArn"],
        instance_type=resources.get("InstanceType", "unknown"),
        hosts=tuple(f"algo-{index + 1}" for index in range(resources.get("InstanceCount", 1))),
        transitions=_transitions(job, status),
        failure=_failure(job.get("FailureReason", "")) if status is JobStatus.FAILED else None,
        over=_OVER.get(secondary),
        billable_seconds=job.get("BillableTimeInSeconds"),
        **places,
    )


def _transitions(job: Mapping[str, Any], end: JobStatus | None) -> tuple[Transition, ...]:
    steps = [
        Transition(
            status=_STATES.get(step["Status"], JobStatus.STARTING),
            time=step["StartTime"],
            message=_detail(step["Status"], step.get("StatusMessage") or ""),
        )
        for step in job.get("SecondaryStatusTransitions", ())
        if step["Status"] not in {*_ENDS, *_OVER}
    ]
    created = Transition(status=JobStatus.STARTING, time=job["CreationTime"])
    steps = steps or [created]
    if job["TrainingJobStatus"] == "Stopping" and steps[-1].status not in _WINDING_UP:
        steps.append(Transition(status=JobStatus.STOPPING, time=job["LastModifiedTime"]))
    if end is not None:
        reason = job.get("FailureReason") or job.get("SecondaryStatus", "")
        steps.append(Transition(status=end, time=_end_time(job), message=reason))
    return tuple(steps)


def _detail(state: str, message: str) -> str:
    """What SageMaker says of a state beyond its name here."""
    shown = "" if state in {*_STATES, "Starting"} else state
    return ": ".join(part for part in (shown, message) if part)


def _end_time(job: Mapping[str, Any]) -> datetime:
    time: datetime = job.get("TrainingEndTime") or job["LastModifiedTime"]
    return time


def _failure(reason: str) -> Failure:
    """Why a job failed: the beginning of its failure file, or what SageMaker itself says."""
    match = _REASON.fullmatch(reason)
    kind, text, code = match.groups() if match else (None, reason, None)
    exit_code = int(code) if code else 1
    if kind not in {None, "AlgorithmError"}:
        return Failure(message=reason, exit_code=exit_code, no_capacity=kind == "CapacityError")
    return failure_from(text, exit_code, None)
