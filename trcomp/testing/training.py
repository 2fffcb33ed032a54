"""One training job of the stand-in: its states, its hosts with the real entrypoint, its results.

Starting --> Downloading --> Training --> Uploading --> Completed, Failed, Stopped
   ^         channels of S3  process_runner            model.tar.gz, output.tar.gz to S3
   |         to each host    lines to CloudWatch
   +---- Interrupted <-----------+  spot instances: checkpoints to S3, then new hosts
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Container, Iterable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from trcomp import s3
from trcomp.backends.aws import client
from trcomp.backends.local_plan import LocalPlan
from trcomp.backends.record import LocalRecord
from trcomp.backends.runner import KILL
from trcomp.backends.sagemaker_record import LONGEST_REASON
from trcomp.contract import Paths
from trcomp.testing import host_files, hosts, pipes
from trcomp.testing.channels import ClientFault
from trcomp.testing.cloudwatch import LogBehaviour, Uploader

STOP_SECONDS = 120.0
"""What SageMaker leaves a container between SIGTERM and SIGKILL."""
NO_CAPACITY = (
    "CapacityError: Unable to provision requested ML compute capacity. Please retry using a "
    "different ML instance type."
)
_TICK_SECONDS = 0.05


class _Stopped(Exception):
    """The job was to stop before its hosts started."""


class _NoCapacity(Exception):
    """There are no instances for the job, and it does not wait for some."""


class TrainingJob(threading.Thread):
    """One job, from its creation to its end."""

    def __init__(
        self,
        request: dict[str, Any],
        arn: str,
        directory: Path,
        no_capacity: Container[str],
        logs: LogBehaviour,
    ) -> None:
        super().__init__(name=request["TrainingJobName"], daemon=True)
        now = datetime.now(UTC)
        self._request = request
        self._directory = directory
        self._no_capacity = no_capacity
        self._logs = logs
        self._interrupted = False
        self._trained_seconds = 0.0
        self._created = time.monotonic()
        self._ended: float | None = None
        """When, by the same clock; None while the job goes on."""
        self._lock = threading.Lock()
        self._stopping: str | None = None
        """Why the job is to stop: the secondary state in which it will end."""
        self._killed = False
        self._reused_by: str | None = None
        self._answer: dict[str, Any] = request | {
            "TrainingJobArn": arn,
            "CreationTime": now,
            "LastModifiedTime": now,
            "TrainingJobStatus": "InProgress",
            "SecondaryStatusTransitions": [],
        }
        self._enter("Starting", "Preparing the instances for training")

    def description(self) -> dict[str, Any]:
        """What DescribeTrainingJob answers."""
        with self._lock:
            steps = [dict(step) for step in self._answer["SecondaryStatusTransitions"]]
            answer = self._answer | {"SecondaryStatusTransitions": steps}
        pool = self._warm_pool()
        return answer | ({"WarmPoolStatus": pool} if pool else {})

    def reuse(self, name: str) -> None:
        """Let another job take over the instances that this one left warm."""
        self._reused_by = name

    def _warm_pool(self) -> dict[str, Any] | None:
        seconds = self._request["ResourceConfig"].get("KeepAlivePeriodInSeconds")
        if not seconds:
            return None
        if self._ended is None:
            return {"Status": "InUse"}
        if self._reused_by is not None:
            return {"Status": "Reused", "ReusedByJob": self._reused_by}
        kept = round(time.monotonic() - self._ended)
        billed = {"ResourceRetainedBillableTimeInSeconds": min(kept, seconds)}
        return {"Status": "Available" if kept < seconds else "Terminated"} | billed

    def interrupt(self) -> None:
        """Take the job's spot instances away while it trains, as AWS may; it starts anew.

        Raises:
            ValueError: The job has no spot instances, or does not train.
        """
        spot = self._request.get("EnableManagedSpotTraining", False)
        if not spot or self._answer["SecondaryStatus"] != "Training":
            raise ValueError(f"{self.name} does not train on spot instances.")
        self._interrupted = True

    def stop(self, state: str = "Stopped") -> bool:
        """Ask the job to stop; False if it has ended."""
        with self._lock:
            if self._answer["TrainingJobStatus"] not in {"InProgress", "Stopping"}:
                return False
            self._stopping = self._stopping or state
            self._answer["TrainingJobStatus"] = "Stopping"
        return True

    def kill(self) -> None:
        """End the job and all its processes; returns when they have ended."""
        self._killed = True
        self.stop()
        self.join()

    def run(self) -> None:
        """Take the job through its states."""
        try:
            self._run()
        except _Stopped:
            self._end("Stopped", self._stopping or "Stopped")
        except _NoCapacity:
            self._end("Failed", "Failed", NO_CAPACITY)
        except ClientFault as error:
            self._end("Failed", "Failed", f"ClientError: {error}")
        except Exception as error:
            self._end("Failed", "Failed", f"InternalServerError: {error!r}")

    def _run(self) -> None:
        for attempt in count(1):
            directory = self._directory / f"attempt-{attempt}"
            self._provision()
            self._enter("Downloading", "Downloading input data")
            arn = self._answer["TrainingJobArn"]
            plan = hosts.plan(self._request, self.name, arn, directory)
            self._check_stop()
            self._enter("Training", "Training image download completed. Training in progress.")
            roots = {host.name: Paths(host.root) for host in plan.hosts}
            with pipes.serving(self._request, roots):
                ended = self._train(plan)
            if not self._interrupted or self._stopping is not None:
                break
            for paths in roots.values():
                host_files.keep_checkpoints(self._request, paths)
            self._enter("Interrupted", "The spot instances were taken away")
            self._interrupted = False
            self._enter("Starting", "Preparing the instances for training")
        self._enter("Uploading", "Uploading generated training model")
        self._upload(ended, directory / "output", roots.values())
        if ended.failure is not None and self._stopping is None:
            self._end("Failed", "Failed", hosts.failure_reason(ended, plan.hosts))
        elif self._stopping is not None:
            self._end("Stopped", self._stopping)
        else:
            self._end("Completed", "Completed")

    def _provision(self) -> None:
        """Wait until there are instances, or find out that there will be none."""
        resources = self._request["ResourceConfig"]
        spot = self._request.get("EnableManagedSpotTraining", False)
        while True:
            self._check_stop()
            for preference in resources.get("InstancePreferences", ()):
                kind = preference["InstanceType"]
                if kind not in self._no_capacity:
                    number = preference.get("InstanceCount") or resources["InstanceCount"]
                    selected = {"SelectedInstanceType": kind, "SelectedInstanceCount": number}
                    self._request = self._request | {"ResourceConfig": resources | selected}
                    self._answer["ResourceConfig"] = resources | selected
                    return
            if not any(
                kind in self._no_capacity for kind in host_files.instance_types(self._request)
            ):
                return
            if not spot:
                raise _NoCapacity
            if self._overdue():
                self.stop("MaxWaitTimeExceeded")
            time.sleep(_TICK_SECONDS)

    def _overdue(self) -> bool:
        """Whether a job on spot instances has waited and trained for as long as it may."""
        seconds = self._request.get("StoppingCondition", {}).get("MaxWaitTimeInSeconds")
        return seconds is not None and time.monotonic() - self._created > seconds

    def _train(self, plan: LocalPlan) -> LocalRecord:
        """Run the hosts, and carry their lines to CloudWatch until they have ended."""
        hosts.start(plan)
        begin, kill_at = time.monotonic(), None
        seconds = self._request.get("StoppingCondition", {}).get("MaxRuntimeInSeconds", 86400)
        logs = plan.directory / "logs"
        with Uploader(self.name, logs, plan.hosts, self._logs) as uploader:
            while not (found := hosts.current(plan.directory)).status.ended:
                if self._trained_seconds + time.monotonic() - begin > seconds:
                    self.stop("MaxRuntimeExceeded")
                elif self._overdue():
                    self.stop("MaxWaitTimeExceeded")
                if self._killed or (kill_at is not None and time.monotonic() > kill_at):
                    hosts.send(found, KILL)
                elif (self._stopping is not None or self._interrupted) and kill_at is None:
                    kill_at = time.monotonic() + STOP_SECONDS
                    if self._stopping is not None:
                        self._enter("Stopping", "Stopping the training job")
                    hosts.send(found, signal.SIGTERM)
                uploader.carry()
                time.sleep(_TICK_SECONDS)
            uploader.carry(final=True)
        self._trained_seconds += time.monotonic() - begin
        return found

    def _upload(self, ended: LocalRecord, results: Path, roots: Iterable[Paths]) -> None:
        output = self._request["OutputDataConfig"]
        place = s3.place(output["S3OutputPath"]) / self.name / "output"
        key = output.get("KmsKeyId")
        encryption = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": key} if key else {}
        for path in sorted(results.glob("*.tar.gz")):
            with path.open("rb") as body:
                where = {"Bucket": place.bucket, "Key": place.key(path.name)}
                client("s3").put_object(**where, **encryption, Body=body)
        if ended.model is not None:
            uri = f"{place}/model.tar.gz"
            self._answer["ModelArtifacts"] = {"S3ModelArtifacts": uri}
        for paths in roots:
            host_files.keep_checkpoints(self._request, paths)

    def _check_stop(self) -> None:
        if self._stopping is not None:
            raise _Stopped

    def _enter(self, state: str, message: str = "") -> None:
        now = datetime.now(UTC)
        with self._lock:
            steps = self._answer["SecondaryStatusTransitions"]
            if steps:
                steps[-1]["EndTime"] = now
            steps.append({"Status": state, "StartTime": now, "StatusMessage": message})
            self._answer |= {"SecondaryStatus": state, "LastModifiedTime": now}
            if state == "Training":
                self._answer.setdefault("TrainingStartTime", now)

    def _end(self, status: str, state: str, reason: str | None = None) -> None:
        self._enter(state, reason or "")
        with self._lock:
            self._ended = time.monotonic()
            now = self._answer["LastModifiedTime"]
            begin = self._answer.get("TrainingStartTime", now)
            self._answer |= {
                "TrainingEndTime": now,
                "TrainingTimeInSeconds": round((now - begin).total_seconds()),
                # Nobody pays for the wait for spot instances.
                "BillableTimeInSeconds": round(self._trained_seconds),
                "TrainingJobStatus": status,
            }
            if reason is not None:
                self._answer["FailureReason"] = reason[:LONGEST_REASON]
