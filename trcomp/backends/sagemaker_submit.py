"""How a job in SageMaker starts: its code goes to S3, unless it is there, then it is created."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trcomp import s3
from trcomp.backends import bundle, own_image
from trcomp.backends.aws import client, code_of, told
from trcomp.backends.base import Plan
from trcomp.backends.sagemaker_image import own
from trcomp.backends.sagemaker_plan import SageMakerPlan
from trcomp.errors import BackendUnavailableError, Problem, QuotaError, SpecError


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
    image = own(plan.spec, plan.region)
    if image is not None:
        own_image.ensure(plan.spec, image)
    if plan.spec.source_uri is None:
        upload(plan)
    with told(f"create {plan.handle}"), _refusals(plan):
        _create(plan.request)


def upload(plan: SageMakerPlan) -> None:
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


def _create(request: dict[str, Any]) -> None:
    """Create the job; of types in order of preference those that no quota admits are left out.

    Of types without capacity SageMaker itself takes the next; a quota that is too small it refuses.
    """
    from botocore.exceptions import ClientError

    while True:
        try:
            client("sagemaker").create_training_job(**request)
            return
        except ClientError as error:
            resources = request["ResourceConfig"]
            preferences = resources.get("InstancePreferences", ())
            if code_of(error) != "ResourceLimitExceeded" or len(preferences) < 2:
                raise
            text = error.response["Error"].get("Message", "")
            # The service names the type that it refuses; it looks at the first one first.
            named = [one for one in preferences if f"{one['InstanceType']} " in text]
            refused = named[0] if named else preferences[0]
            left = [one for one in preferences if one is not refused]
            warnings.warn(
                f"{refused['InstanceType']} is left out: {text} Next is {left[0]['InstanceType']}.",
                stacklevel=2,
            )
            request = request | {"ResourceConfig": resources | {"InstancePreferences": left}}


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
            raise QuotaError(f"{plan.handle}: {text}", hint) from error
        if code in {"ValidationException", "ResourceNotFound"}:
            if "assume role" in text.lower():
                problem = Problem("role", plan.request["RoleArn"], text)
                hint = (
                    "Its trust policy must let sagemaker.amazonaws.com assume it (sts:AssumeRole)."
                )
                raise SpecError([problem], hint) from error
            raise SpecError([Problem("request", plan.job_name, text)]) from error
        raise
