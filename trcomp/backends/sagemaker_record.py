"""A job's record out of what DescribeTrainingJob and ListTrainingJobs say of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from trcomp import s3
from trcomp.backends.base import Failure, JobRecord, JobStatus, Transition
from trcomp.backends.results import failure_from
from trcomp.backends.sagemaker_logs import GROUP
from trcomp.backends.sagemaker_plan import NAME
from trcomp.images import prices

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
_DENIED = re.compile(r"Access ?Denied|Forbidden|\b403\b", re.IGNORECASE)
_REASON = re.compile(
    r"(?:(AlgorithmError|CapacityError|ClientError|InternalServerError): )?(.*?)"
    r"(?:, exit code: (\d+))?",
    re.DOTALL,
)


class SageMakerRecord(JobRecord):
    """What SageMaker says of a job."""

    arn: str
    spot: bool = False
    training_start: datetime | None = None
    """When it began to cost."""
    billable_seconds: int | None = None
    """Of each instance, once the job has ended."""
    results: str | None = None
    """``s3://`` of what the job leaves."""
    warm_pool: str | None = None
    """What became of the instances that were to stay warm."""
    reuses: str | None = None
    """The job whose warm instances this one took over."""

    @property
    def region(self) -> str:
        """The job's region."""
        return self.arn.split(":")[3]

    @property
    def place(self) -> str:
        """The job's page in the console."""
        return f"{self._console}/sagemaker/home?region={self.region}#/jobs/{self.name}"

    @property
    def links(self) -> dict[str, str]:
        """The console's pages of the job, its log and its results."""
        # The log's page takes names that are encoded twice, with $ for %.
        name = quote(quote(GROUP, safe=""), safe="").replace("%", "$")
        query = f"logStreamNameFilter$3D{self.name}$252F"
        found = {
            "job": self.place,
            "log": f"{self._console}/cloudwatch/home?region={self.region}"
            f"#logsV2:log-groups/log-group/{name}$3F{query}",
        }
        if self.results is not None:
            place = s3.place(self.results)
            found["results"] = (
                f"{self._console}/s3/buckets/{place.bucket}"
                f"?region={self.region}&prefix={quote(place.prefix)}/"
            )
        return found

    def billed_seconds(self, now: datetime) -> int | None:
        """For how long each instance is paid for, until now while the job goes on."""
        if self.billable_seconds is not None:
            return self.billable_seconds
        if self.training_start is None or self.status.ended:
            return None
        return round((now - self.training_start).total_seconds())

    def cost(self, now: datetime) -> str | None:
        """By the table of prices, and when that was looked up."""
        seconds = self.billed_seconds(now)
        table = prices.table()
        hourly = table.hourly(self.instance_type, self.region, self.spot)
        if seconds is None or hourly is None:
            return None
        dollars = hourly * len(self.hosts) * seconds / 3600
        return f"about ${dollars:.2f}, {table.origins([self.instance_type], self.region)}"

    def details(self, now: datetime) -> list[tuple[str, str]]:
        """The instances, how long they are paid for, what that costs, whether they stay warm."""
        spot = ", spot" if self.spot else ""
        rows = [("instances", f"{len(self.hosts)} x {self.instance_type}{spot}")]
        seconds = self.billed_seconds(now)
        if seconds is not None:
            rows.append(("billed", f"{seconds} s each"))
        if (cost := self.cost(now)) is not None:
            rows.append(("cost", cost))
        if self.reuses is not None:
            rows.append(("warm pool", f"took over the instances of {self.reuses}"))
        if self.warm_pool is not None:
            rows.append(("warm pool", self.warm_pool))
        return rows

    @property
    def _console(self) -> str:
        domain = _CONSOLES.get(self.arn.split(":")[1], "console.aws.amazon.com")
        return f"https://{self.region}.{domain}"


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
    if results:
        places["results"] = f"{results['S3OutputPath'].rstrip('/')}/{name}/output"
    if status is not None and results.get("CompressionType", "GZIP") == "GZIP" and results:
        places["output"] = f"{places['results']}/output.tar.gz"
    if status in {JobStatus.COMPLETED, JobStatus.STOPPED}:
        model = job.get("ModelArtifacts", {}).get("S3ModelArtifacts")
        places |= {"model": model} if model else {}
    failure = None
    if status is JobStatus.FAILED:
        failure = _failure(job.get("FailureReason", ""), job.get("RoleArn"))
    metrics = job.get("AlgorithmSpecification", {}).get("MetricDefinitions") or ()
    return SageMakerRecord(
        name=name,
        backend=NAME,
        arn=job["TrainingJobArn"],
        instance_type=_instance_type(resources),
        hosts=tuple(f"algo-{index + 1}" for index in range(_instance_count(resources))),
        transitions=_transitions(job, status),
        failure=failure,
        over=_OVER.get(secondary),
        spot=job.get("EnableManagedSpotTraining", False),
        training_start=job.get("TrainingStartTime"),
        billable_seconds=job.get("BillableTimeInSeconds"),
        warm_pool=_warm_pool(job.get("WarmPoolStatus", {})),
        metric_definitions={metric["Name"]: metric["Regex"] for metric in metrics},
        **places,
    )


def _instance_type(resources: Mapping[str, Any]) -> str:
    """On which type a job runs; where SageMaker has yet to choose, or of groups, all of them."""
    chosen = resources.get("SelectedInstanceType") or resources.get("InstanceType")
    several = resources.get("InstanceGroups") or resources.get("InstancePreferences") or ()
    names = dict.fromkeys(entry["InstanceType"] for entry in several)
    separator = " + " if resources.get("InstanceGroups") else " or "
    return str(chosen or separator.join(names) or "unknown")


def _instance_count(resources: Mapping[str, Any]) -> int:
    groups = resources.get("InstanceGroups") or ()
    count = resources.get("SelectedInstanceCount") or resources.get("InstanceCount")
    return count or sum(group["InstanceCount"] for group in groups) or 1


def _warm_pool(pool: Mapping[str, Any]) -> str | None:
    """What SageMaker says of instances that stay warm, for a reader."""
    status, seconds = pool.get("Status"), pool.get("ResourceRetainedBillableTimeInSeconds")
    billed = "" if seconds is None else f", {seconds} s billed beyond the job"
    if status == "Reused":
        return f"its instances went over to {pool['ReusedByJob']}{billed}"
    texts = {
        "InUse": "its instances stay warm after it",
        "Available": f"its instances are warm for the next job of their kind{billed}",
        "Terminated": f"its instances are given back{billed}",
    }
    return texts.get(status or "")


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


def _failure(reason: str, role: str | None) -> Failure:
    """Why a job failed: the beginning of its failure file, or what SageMaker itself says."""
    match = _REASON.fullmatch(reason)
    kind, text, code = match.groups() if match else (None, reason, None)
    exit_code = int(code) if code else 1
    if kind not in {None, "AlgorithmError"}:
        if role is not None and _DENIED.search(reason):
            reason = f"{reason} (The job acts as {role}, which IAM must allow this.)"
        return Failure(message=reason, exit_code=exit_code, no_capacity=kind == "CapacityError")
    return failure_from(text, exit_code, None)
