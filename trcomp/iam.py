"""Least-privilege IAM policies: of who starts jobs in SageMaker, and of the role that jobs act as.

Scope --caller_policy--> what trcomp's own calls need, action by action
      --job_policy-----> what SageMaker and the job need as the role
      --trust_policy---> who may act as the role
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trcomp import s3
from trcomp.errors import Problem, SpecError

Policy = dict[str, Any]

_ROLE = re.compile(r"arn:([^:]+):iam::(\d{12}):role/.+")
_REPOSITORY = re.compile(r"(\d{12})\.dkr\.ecr\.([^.]+)\.amazonaws\.com(?:\.cn)?/([^:@]+).*")
_LOG_GROUP = "/aws/sagemaker/TrainingJobs"

CALLS = {
    "CreateTrainingJob": ("sagemaker:CreateTrainingJob", "jobs"),
    "DescribeTrainingJob": ("sagemaker:DescribeTrainingJob", "jobs"),
    "StopTrainingJob": ("sagemaker:StopTrainingJob", "jobs"),
    "DeleteTrainingJob": ("sagemaker:DeleteTrainingJob", "jobs"),
    "ListTrainingJobs": ("sagemaker:ListTrainingJobs", "all"),
    "HeadBucket": ("s3:ListBucket", "bucket"),
    "ListObjectsV2": ("s3:ListBucket", "bucket"),
    "HeadObject": ("s3:GetObject", "objects"),
    "GetObject": ("s3:GetObject", "objects"),
    "PutObject": ("s3:PutObject", "code"),
    "DescribeLogStreams": ("logs:DescribeLogStreams", "log"),
    "GetLogEvents": ("logs:GetLogEvents", "log"),
    "DescribeImages": ("ecr:DescribeImages", "image"),
}
"""Every call that trcomp makes where jobs are started: the action that it needs, and on what."""

BESIDE = (("sagemaker:AddTags", "jobs"), ("iam:PassRole", "role"))
"""What creating a job needs beside: for its tags, and to hand over its role."""

PUSH_CALLS = {
    "GetAuthorizationToken": ("ecr:GetAuthorizationToken", "all"),
    "DescribeImages": ("ecr:DescribeImages", "image"),
    "DescribeRepositories": ("ecr:DescribeRepositories", "image"),
    "CreateRepository": ("ecr:CreateRepository", "image"),
    "PutLifecyclePolicy": ("ecr:PutLifecyclePolicy", "image"),
}
"""Every call that trcomp makes where an image is pushed; the engine itself makes `_UPLOAD`."""
_UPLOAD = (
    *("BatchCheckLayerAvailability", "CompleteLayerUpload", "InitiateLayerUpload", "PutImage"),
    "UploadLayerPart",
)
_OWN_REPOSITORY = "trcomp"
"""Where the image lies that jobs without image_uri run in."""


@dataclass(frozen=True)
class Scope:
    """What policies are for.

    Attributes:
        role: ARN of the role that jobs act as.
        region: Where jobs run.
        output_path: Where code and results go, ``s3://bucket/prefix``.
        code_location: Where code goes instead.
        reads: Places in S3 that jobs read.
        writes: Places in S3 that jobs write beside output_path, such as checkpoints.
        image_uri: The image; None: trcomp's own, in the account's repository of that name.
        kms_key: ARN of the key that encrypts code and results.
        vpc: Whether jobs run in subnets.

    Raises:
        SpecError: Holds every value that is none.
    """

    role: str
    region: str
    output_path: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    image_uri: str | None = None
    kms_key: str | None = None
    vpc: bool = False
    code_location: str | None = None

    def __post_init__(self) -> None:
        problems: list[Problem] = []
        if _ROLE.fullmatch(self.role) is None:
            allowed = "the ARN of a role is needed, arn:aws:iam::ACCOUNT:role/NAME."
            problems.append(Problem("role", self.role, allowed))
        for uri in (self.output_path, self.code, *self.reads, *self.writes):
            faults = s3.faults(uri) if s3.is_url(uri) else ["s3://bucket/prefix is needed."]
            found = [Problem("place", uri, fault) for fault in faults]
            problems += [problem for problem in found if problem not in problems]
        if problems:
            raise SpecError(problems)

    @property
    def code(self) -> str:
        """Where code goes."""
        return self.code_location or self.output_path

    @property
    def partition(self) -> str:
        """AWS's partition, ``aws`` for most."""
        match = _ROLE.fullmatch(self.role)
        assert match is not None
        return match[1]

    @property
    def account(self) -> str:
        """The account of the role, and so of the jobs."""
        match = _ROLE.fullmatch(self.role)
        assert match is not None
        return match[2]


def caller_policy(scope: Scope) -> Policy:
    """What whoever starts and watches jobs needs: the actions of `CALLS` and `BESIDE`, no more."""
    output, code = s3.place(scope.output_path), s3.place(scope.code) / "trcomp/code"
    resources = {
        "jobs": [f"arn:{scope.partition}:sagemaker:{scope.region}:{scope.account}:training-job/*"],
        "all": ["*"],  # SageMaker knows no resource for a list.
        "role": [scope.role],
        "bucket": [_bucket(scope, output), _bucket(scope, code)],
        "objects": [_objects(scope, output), *_elsewhere(scope, code)],
        "code": [_objects(scope, code)],
        "log": _log(scope),
        # Only whether trcomp's own image is there is looked up.
        "image": [] if scope.image_uri else _repository(scope),
    }
    needed: dict[str, list[str]] = {where: [] for where in resources}
    for action, where in (*CALLS.values(), *BESIDE):
        needed[where].append(action)
    statements = [_allow(needed[at], found) for at, found in resources.items() if found]
    for statement in statements:
        if statement["Action"] == ["iam:PassRole"]:
            to = {"iam:PassedToService": "sagemaker.amazonaws.com"}
            statement["Condition"] = {"StringEquals": to}
    return _policy([*statements, *_key_statements(scope)])


def job_policy(scope: Scope) -> Policy:
    """What the role needs so that SageMaker can run the job: data, results, image, log, metrics."""
    output = s3.place(scope.output_path)
    more = scope.reads + scope.writes + ((scope.code,) if scope.code_location else ())
    reads = [output, *map(s3.place, more)]
    writes = [output, *map(s3.place, scope.writes)]
    statements = [
        _allow(["s3:ListBucket"], [_bucket(scope, place) for place in reads]),
        _allow(["s3:GetObject"], [_objects(scope, place) for place in reads]),
        _allow(
            ["s3:AbortMultipartUpload", "s3:PutObject"],
            [_objects(scope, place) for place in writes],
        ),
        _allow(
            [
                "logs:CreateLogGroup",
                "logs:CreateLogStream",
                "logs:DescribeLogStreams",
                "logs:PutLogEvents",
            ],
            _log(scope),
        ),
        {
            **_allow(["cloudwatch:PutMetricData"], ["*"]),
            "Condition": {"StringEquals": {"cloudwatch:namespace": _LOG_GROUP}},
        },
        *_image_statements(scope),
        *_key_statements(scope),
    ]
    if scope.vpc:
        interfaces = [f"ec2:{verb}NetworkInterface" for verb in ("Create", "Delete")]
        permissions = [f"{action}Permission" for action in interfaces]
        found = ("NetworkInterfaces", "Vpcs", "Subnets", "SecurityGroups", "DhcpOptions")
        describe = [f"ec2:Describe{name}" for name in found]
        statements.append(_allow([*interfaces, *permissions, *describe], ["*"]))
    return _policy(statements)


def push_policy(scope: Scope) -> Policy:
    """What whoever pushes the image to Amazon ECR needs; the repository is created once."""
    actions = [action for action, where in PUSH_CALLS.values() if where == "image"]
    actions += [f"ecr:{name}" for name in _UPLOAD]
    sign_in = _allow(["ecr:GetAuthorizationToken"], ["*"])
    return _policy([sign_in, _allow(actions, _repository(scope))])


def trust_policy(scope: Scope) -> Policy:
    """Who may act as the role: SageMaker, for jobs of this account."""
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "sagemaker.amazonaws.com"},
        "Action": "sts:AssumeRole",
        "Condition": {"StringEquals": {"aws:SourceAccount": scope.account}},
    }
    return _policy([statement])


POLICIES = {
    "caller": caller_policy,
    "job": job_policy,
    "trust": trust_policy,
    "push": push_policy,
}
"""By what they are for."""


def _image_statements(scope: Scope) -> Iterator[Policy]:
    repository = _repository(scope)
    if not repository:
        return
    yield _allow(["ecr:GetAuthorizationToken"], ["*"])
    layers = ("BatchCheckLayerAvailability", "BatchGetImage", "GetDownloadUrlForLayer")
    yield _allow([f"ecr:{name}" for name in layers], repository)


def _repository(scope: Scope) -> list[str]:
    """The image's repository in Amazon ECR; none if the image is elsewhere."""
    match = _REPOSITORY.fullmatch(scope.image_uri or "")
    if match is None and scope.image_uri is not None:
        return []
    account, region, name = (
        match.groups() if match else (scope.account, scope.region, _OWN_REPOSITORY)
    )
    return [f"arn:{scope.partition}:ecr:{region}:{account}:repository/{name}"]


def _elsewhere(scope: Scope, code: s3.Place) -> list[str]:
    """The code's objects, if they do not lie among the results."""
    return [_objects(scope, code)] if scope.code_location else []


def _key_statements(scope: Scope) -> Iterator[Policy]:
    if scope.kms_key is not None:
        yield _allow(["kms:Decrypt", "kms:GenerateDataKey"], [scope.kms_key])


def _log(scope: Scope) -> list[str]:
    group = f"arn:{scope.partition}:logs:{scope.region}:{scope.account}:log-group:{_LOG_GROUP}"
    return [group, f"{group}:log-stream:*"]


def _policy(statements: list[Policy]) -> Policy:
    return {"Version": "2012-10-17", "Statement": statements}


def _allow(actions: list[str], resources: list[str]) -> Policy:
    distinct = list(dict.fromkeys(resources))
    return {"Effect": "Allow", "Action": sorted(set(actions)), "Resource": distinct}


def _bucket(scope: Scope, place: s3.Place) -> str:
    return f"arn:{scope.partition}:s3:::{place.bucket}"


def _objects(scope: Scope, place: s3.Place) -> str:
    return f"arn:{scope.partition}:s3:::{place.bucket}/{place.key('*')}"
