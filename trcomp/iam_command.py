"""`trcomp iam-policy`: the IAM policies of jobs in SageMaker, as JSON that IAM takes."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from trcomp import iam
from trcomp.backends.region import region as current_region
from trcomp.errors import Problem, SpecError


@click.command(name="iam-policy")
@click.option("--role", required=True, help="ARN of the IAM role that jobs act as.")
@click.option(
    "--for",
    "who",
    type=click.Choice(list(iam.POLICIES)),
    default="caller",
    show_default=True,
    help="Who starts and watches jobs, the job's role, who may act as it, or who pushes images.",
)
@click.option("--region", help="Where jobs run; default: as boto3 is configured.")
@click.option(
    "--output-path", help="Where code and results go; default: SageMaker's bucket of the region."
)
@click.option("--code-location", help="Where code goes instead.")
@click.option("--read", "reads", multiple=True, help="s3:// that jobs read; repeatable.")
@click.option("--write", "writes", multiple=True, help="s3:// for checkpoints; repeatable.")
@click.option("--image-uri", help="The image; default: trcomp's own in the account.")
@click.option("--kms-key", help="ARN of the key that encrypts code and results.")
@click.option("--vpc", is_flag=True, help="Jobs run in subnets.")
def iam_policy(
    role: str,
    who: str,
    region: str | None,
    output_path: str | None,
    code_location: str | None,
    reads: Sequence[str],
    writes: Sequence[str],
    image_uri: str | None,
    kms_key: str | None,
    vpc: bool,
) -> None:
    """Print the least that IAM must allow. Nothing is called or changed."""
    found = region or current_region()
    if found is None:
        allowed = "a region is needed: give it, or set AWS_DEFAULT_REGION."
        raise SpecError([Problem("--region", None, allowed)])
    account = role.split(":")[4] if role.count(":") >= 5 else ""
    scope = iam.Scope(
        role=role,
        region=found,
        output_path=output_path or f"s3://sagemaker-{found}-{account or 'account'}",
        reads=tuple(reads),
        writes=tuple(writes),
        image_uri=image_uri,
        kms_key=kms_key,
        vpc=vpc,
        code_location=code_location,
    )
    click.echo(json.dumps(iam.POLICIES[who](scope), indent=2))
