"""The SageMaker backend: a job is a training job of Amazon SageMaker, asked about through boto3.

    submit    HeadBucket, HeadObject, PutObject if the code is new, CreateTrainingJob
    describe  DescribeTrainingJob            read_logs  DescribeLogStreams, GetLogEvents
    stop      StopTrainingJob                report     GetObject: output.tar.gz

Nothing is kept on this machine: a handle ``sagemaker://NAME`` finds its job from any machine whose
AWS configuration leads to the job's account and region.
"""

from __future__ import annotations

import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from trcomp import s3
from trcomp.backends import bundle, results, sagemaker_logs
from trcomp.backends.aws import client, code_of, told
from trcomp.backends.base import Cursor, Plan
from trcomp.backends.region import region
from trcomp.backends.sagemaker_plan import NAME, SageMakerPlan, plan, problems
from trcomp.backends.sagemaker_record import LONGEST_REASON, SageMakerRecord, to_record
from trcomp.errors import (
    BackendUnavailableError,
    JobNotFoundError,
    JobRunningError,
    Problem,
    SpecError,
)

__all__ = [
    "POLL_SECONDS",
    "describe",
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
SETTLE_SECONDS = 15.0
"""How long after a job's end lines of it may still arrive."""
_LISTED = 100


def submit(plan: Plan) -> None:
    """Upload the code, unless it is there already, and create the training job.

    Raises:
        SpecError: A job of that name exists, or SageMaker refuses the request.
        BackendUnavailableError: AWS cannot be reached, or refuses; the message says what to do.
    """
    assert isinstance(plan, SageMakerPlan)
    if plan.region is None:
        with told(f"submit {plan.handle}"):
            client("sagemaker")  # says that no region is set
    if plan.spec.source_uri is None:
        _upload(plan)
    with told(f"create {plan.handle}"), _refusals(plan):
        client("sagemaker").create_training_job(**plan.request)


def describe(name: str) -> SageMakerRecord:
    """The job's record as SageMaker has it now.

    Raises:
        JobNotFoundError: No job in this account and region has that name.
        BackendUnavailableError: AWS cannot be reached, or refuses.
    """
    found = _description(name)
    record = to_record(found)
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
    num_hosts = begin.pop("hosts", None) or len(to_record(_description(name)).hosts)
    with told(f"read the log of {NAME}://{name}", _goes_on(name)):
        lines, following = sagemaker_logs.read(client("logs"), name, begin, num_hosts > 1)
        if final and not lines and (wait := _settling(name)) > 0:
            time.sleep(wait)
            lines, following = sagemaker_logs.read(client("logs"), name, following, num_hosts > 1)
    return lines, {**following, "hosts": num_hosts}


def stop(name: str) -> None:
    """Ask SageMaker to stop the job: SIGTERM, two minutes, SIGKILL. An ended job stays so.

    Raises:
        JobNotFoundError: No job in this account and region has that name.
        BackendUnavailableError: AWS cannot be reached, or refuses.
    """
    from botocore.exceptions import ClientError

    if to_record(_description(name)).status.ended:
        return
    with told(f"stop {NAME}://{name}"):
        try:
            client("sagemaker").stop_training_job(TrainingJobName=name)
        except ClientError:
            if not to_record(_description(name)).status.ended:
                raise


def remove(name: str) -> None:
    """Delete the job from SageMaker's list; its results in S3 and its log stay.

    Raises:
        JobRunningError: The job has not ended.
    """
    found = to_record(_description(name))
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
    found = to_record(_description(name))
    return results.report_of(found.handle, _reports(found.output) if found.output else ())


def records() -> list[SageMakerRecord]:
    """The newest training jobs of this account and region, oldest first, whoever started them."""
    with told("list training jobs"):
        answer = client("sagemaker").list_training_jobs(
            SortBy="CreationTime", SortOrder="Descending", MaxResults=_LISTED
        )
    return [to_record(job) for job in reversed(answer["TrainingJobSummaries"])]


def _description(name: str) -> dict[str, Any]:
    from botocore.exceptions import ClientError

    handle = f"{NAME}://{name}"
    with told(f"ask for {handle}", _goes_on(name)):
        try:
            found: dict[str, Any] = client("sagemaker").describe_training_job(TrainingJobName=name)
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


def _goes_on(name: str) -> str:
    return f"The job goes on: `trcomp logs -f {NAME}://{name}` follows it again."


def _settling(name: str) -> float:
    """Seconds until all lines of an ended job have arrived; 0 for one that goes on."""
    last = to_record(_description(name)).transitions[-1]
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


def _upload(plan: SageMakerPlan) -> None:
    """Put the code where the request says, if it is not there.

    Raises:
        SpecError: A file changed since the plan was made.
    """
    uri = plan.code_uri
    place = s3.place(uri)
    owner = {}
    if plan.spec.output_path is None and "code_location" not in plan.spec.managed:
        # The default bucket's name can be guessed: it must be this account's own.
        owner = {"ExpectedBucketOwner": plan.account}
    where = {"Bucket": place.bucket, "Key": place.prefix} | owner
    with told(f"upload the code to {uri}"):
        _check_bucket(plan, place.bucket, owner)
        if _exists(where):
            return
        with tempfile.TemporaryFile() as archive:
            try:
                digest = bundle.write(plan.files, archive)
            except OSError as error:
                raise _changed(plan, str(error)) from error
            if digest != plan.digest:
                raise _changed(plan, "its files changed while the job was planned.")
            archive.seek(0)
            client("s3").put_object(**where, **_encryption(plan), Body=archive)


def _encryption(plan: SageMakerPlan) -> dict[str, str]:
    key = plan.spec.managed.get("output_kms_key")
    return {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": key} if key else {}


def _changed(plan: SageMakerPlan, what: str) -> SpecError:
    return SpecError([Problem("source_dir", plan.spec.source_dir, what)], "Submit it again.")


def _check_bucket(plan: SageMakerPlan, bucket: str, owner: dict[str, str]) -> None:
    from botocore.exceptions import ClientError

    try:
        found = client("s3").head_bucket(Bucket=bucket, **owner).get("BucketRegion")
    except ClientError as error:
        if code_of(error) in {"404", "NoSuchBucket"}:
            raise BackendUnavailableError(
                f"There is no bucket {bucket!r}.",
                f"`aws s3 mb s3://{bucket} --region {plan.region}` makes it; or give output_path.",
            ) from error
        # Who may write there but not list it gets 403, and is told by the upload if it matters.
        if code_of(error) != "403":
            raise
        return
    if found is not None and found != plan.region:
        raise BackendUnavailableError(
            f"The bucket {bucket!r} is in {found}, the job in {plan.region}: SageMaker needs both "
            "in one region.",
            f"Set AWS_DEFAULT_REGION={found}, or choose a bucket in {plan.region}.",
        )


def _exists(where: dict[str, str]) -> bool:
    from botocore.exceptions import ClientError

    try:
        client("s3").head_object(**where)
    except ClientError as error:
        if code_of(error) in {"404", "403", "NoSuchKey"}:
            return False
        raise
    return True


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
                if member.name.startswith(f"{results.REPORTS}/rank-"):
                    stream = archive.extractfile(member)
                    if stream is not None:
                        yield stream.read()


@contextmanager
def _refusals(plan: SageMakerPlan) -> Iterator[None]:
    """SageMaker's refusals of a request that are no matter of access."""
    from botocore.exceptions import ClientError

    try:
        yield
    except ClientError as error:
        code, text = code_of(error), error.response["Error"].get("Message", "")
        if code == "ResourceInUse":
            problem = Problem("job_name", plan.job_name, "a training job of that name exists.")
            raise SpecError([problem], "Choose another name.") from error
        if code == "ResourceLimitExceeded":
            hint = "Ask for a higher limit in AWS's Service Quotas, or choose another type."
            raise BackendUnavailableError(f"{plan.handle}: {text}", hint) from error
        if code in {"ValidationException", "ResourceNotFound"}:
            raise SpecError([Problem("request", plan.job_name, text)]) from error
        raise
