"""The SageMaker backend: a job is a training job of Amazon SageMaker, asked about through boto3.

    submit    HeadBucket, HeadObject, PutObject if the code is new, CreateTrainingJob
    describe  DescribeTrainingJob            read_logs  DescribeLogStreams, GetLogEvents
    stop      StopTrainingJob                report     GetObject: output.tar.gz

Nothing is kept on this machine: a handle ``sagemaker://NAME`` finds its job from any machine whose
AWS configuration leads to the job's account and region.
"""

from __future__ import annotations

import tarfile
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from trcomp import s3
from trcomp.backends import results, sagemaker_logs
from trcomp.backends.aws import client, code_of, renewed, told
from trcomp.backends.base import Cursor, Stretch
from trcomp.backends.region import region
from trcomp.backends.sagemaker_plan import NAME, plan, problems
from trcomp.backends.sagemaker_record import LONGEST_REASON, SageMakerRecord, to_record
from trcomp.backends.sagemaker_submit import submit
from trcomp.errors import (
    BackendUnavailableError,
    JobNotFoundError,
    JobRunningError,
)

__all__ = [
    "POLL_SECONDS",
    "REMOTE",
    "describe",
    "download",
    "live",
    "plan",
    "problems",
    "read_logs",
    "records",
    "remove",
    "report",
    "stop",
    "submit",
]

POLL_SECONDS = 5.0
REMOTE = True
SETTLE_SECONDS = 15.0
"""How long after a job's end lines of it may still arrive."""
_LISTED = 100
_LARGEST_REPORT_BYTES = 16 * 2**20


def describe(name: str) -> SageMakerRecord:
    """The job's record as SageMaker has it now.

    Raises:
        JobNotFoundError: No job in this account and region has that name.
        BackendUnavailableError: AWS cannot be reached, or refuses.
    """
    found = description(name)
    record = to_record(found)
    if record.warm_pool is not None and record.status.ended:
        record = record.model_copy(update={"reuses": _reused_by(name)})
    failure = record.failure
    if failure is None or failure.host is None:
        return record
    last = _last_lines(name, failure.host, failure.rank)
    traceback = failure.traceback
    if last and len(found["FailureReason"]) >= LONGEST_REASON:
        traceback += "…\n\nSageMaker keeps no more of it. The last lines of its log:\n" + "\n".join(
            last
        )
    changes = {"last_lines": last, "traceback": traceback}
    return record.model_copy(update={"failure": failure.model_copy(update=changes)})


def read_logs(name: str, cursor: Cursor, final: bool) -> tuple[list[str], Cursor]:
    """The lines after a cursor, of all hosts; with several hosts each line names its host.

    Args:
        name: The job.
        cursor: What an earlier call gave, {} for the beginning.
        final: The job has ended: waits until no more can arrive before it gives no lines.
    """
    begin = dict(cursor)
    num_hosts = begin.pop("hosts", None) or len(to_record(description(name)).hosts)

    def read(cursor: Cursor) -> tuple[list[str], Cursor]:
        with told(f"read the log of {NAME}://{name}", _goes_on(name)):
            return renewed(
                lambda: sagemaker_logs.read(
                    client("logs"), name, cursor, num_hosts > 1, final=final
                )
            )

    # Before reading: by the time the last of many hosts is asked, the first may have more.
    settled = time.monotonic() + settling if final and (settling := _settling(name)) > 0 else None
    lines, following = read(begin)
    if settled is not None and not lines:
        time.sleep(max(0.0, settled - time.monotonic()))
        lines, following = read(following)
    return lines, {**following, "hosts": num_hosts}


def stop(name: str) -> None:
    """Ask SageMaker to stop the job: SIGTERM, two minutes, SIGKILL. An ended job stays so.

    Raises:
        JobNotFoundError: No job in this account and region has that name.
        BackendUnavailableError: AWS cannot be reached, or refuses.
    """
    from botocore.exceptions import ClientError

    if to_record(description(name)).status.ended:
        return
    with told(f"stop {NAME}://{name}"):
        try:
            client("sagemaker").stop_training_job(TrainingJobName=name)
        except ClientError:
            if not to_record(description(name)).status.ended:
                raise


def remove(name: str) -> None:
    """Delete the job from SageMaker's list; its results in S3 and its log stay.

    Raises:
        JobRunningError: The job has not ended.
    """
    found = to_record(description(name))
    if not found.status.ended:
        raise JobRunningError(
            f"{found.handle} is {found.status}: only a job that has ended can be removed.",
            found.handle,
            f"`trcomp stop {found.handle}` ends it.",
        )
    with told(f"remove {found.handle}"):
        client("sagemaker").delete_training_job(TrainingJobName=name)


def report(name: str) -> dict[str, Any]:
    """What the job's workers measured, out of output.tar.gz; nothing before the job has ended."""
    found = to_record(description(name))
    return results.report_of(found.handle, _reports(found.output) if found.output else ())


def live(name: str) -> list[Stretch]:
    """Nothing: what a container writes reaches S3 when its job has ended."""
    return []


def download(name: str, directory: Path, which: Collection[str]) -> list[Path]:
    """Write the job's results into a directory, archives or, uncompressed, their files.

    Raises:
        BackendUnavailableError: Something cannot be read or written.
    """
    found = to_record(description(name))
    if found.results is None:
        return []
    place = s3.place(found.results)
    written = []
    with told(f"download {found.results}"):
        where = {"Bucket": place.bucket, "Prefix": f"{place.prefix}/"}
        for page in client("s3").get_paginator("list_objects_v2").paginate(**where):
            for item in page.get("Contents", ()):
                path = PurePosixPath(item["Key"]).relative_to(place.prefix)
                if path.parts[0].partition(".")[0] not in which or ".." in path.parts:
                    continue
                target = directory / path
                target.parent.mkdir(parents=True, exist_ok=True)
                client("s3").download_file(place.bucket, item["Key"], str(target))
                written.append(target)
    return written


def records() -> list[SageMakerRecord]:
    """The newest training jobs of this account and region, oldest first, whoever started them."""
    with told("list training jobs"):
        answer = client("sagemaker").list_training_jobs(
            SortBy="CreationTime", SortOrder="Descending", MaxResults=_LISTED
        )
    return [to_record(job) for job in reversed(answer["TrainingJobSummaries"])]


def description(name: str) -> dict[str, Any]:
    """The answer of DescribeTrainingJob.

    Raises:
        JobNotFoundError: No job in this account and region has that name.
        BackendUnavailableError: AWS cannot be reached, or refuses.
    """
    from botocore.exceptions import ClientError

    handle = f"{NAME}://{name}"
    with told(f"ask for {handle}", _goes_on(name)):
        try:
            found: dict[str, Any] = renewed(
                lambda: client("sagemaker").describe_training_job(TrainingJobName=name)
            )
        except ClientError as error:
            # So SageMaker says that it does not know the job.
            if code_of(error) in {"ValidationException", "ResourceNotFound"}:
                raise JobNotFoundError(
                    f"There is no job {handle} in region {region()}.",
                    handle,
                    "`trcomp list --backend sagemaker` shows the jobs of this account and region.",
                ) from error
            raise
    return found


def _reused_by(name: str) -> str | None:
    """The job whose warm instances a job took over; None if none, or if it cannot be known."""
    with suppress(BackendUnavailableError), told("list warm pools"):
        answer = client("sagemaker").list_training_jobs(
            WarmPoolStatusEquals="Reused",
            SortBy="CreationTime",
            SortOrder="Descending",
            MaxResults=_LISTED,
        )
        for job in answer["TrainingJobSummaries"]:
            if job.get("WarmPoolStatus", {}).get("ReusedByJob") == name:
                return str(job["TrainingJobName"])
    return None


def _goes_on(name: str) -> str:
    return f"The job goes on: `trcomp logs -f {NAME}://{name}` follows it again."


def _settling(name: str) -> float:
    """Seconds until all lines of an ended job have arrived; 0 for one that goes on."""
    last = to_record(description(name)).transitions[-1]
    if not last.status.ended:
        return 0.0
    since = (datetime.now(UTC) - last.time).total_seconds()
    return min(SETTLE_SECONDS, SETTLE_SECONDS - since)


def _last_lines(name: str, host: str, rank: int | None) -> tuple[str, ...]:
    try:
        with told("read the log"):
            lines = sagemaker_logs.last_lines(client("logs"), name, host, 200)
    except BackendUnavailableError:  # Why the job failed is known without them.
        return ()
    prefix = "" if rank is None else f"[rank {rank}] "
    own = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
    return tuple(own[-results.LAST_LINES :])


def _reports(uri: str) -> Iterator[bytes]:
    """The workers' reports in an archive in S3, which is read as it comes, if there is one."""
    from botocore.exceptions import ClientError

    place = s3.place(uri)
    with told(f"read {uri}"):
        try:
            answer = client("s3").get_object(Bucket=place.bucket, Key=place.prefix)
        except ClientError as error:
            if code_of(error) in {"404", "NoSuchKey", "AccessDenied"}:
                return
            raise
        with answer["Body"] as body, tarfile.open(fileobj=body, mode="r|gz") as archive:
            for member in archive:
                named = results.is_report(member.name)
                # A link leads elsewhere, and what is larger than a report is none.
                if named and member.isreg() and member.size <= _LARGEST_REPORT_BYTES:
                    stream = archive.extractfile(member)
                    if stream is not None:
                        yield stream.read()
