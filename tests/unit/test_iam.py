"""IAM policies: their form, their scope, and that the command prints them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trcomp import SpecError, iam
from trcomp.cli import main

ROLE = "arn:aws:iam::123456789012:role/Training"


def scope(**more: Any) -> iam.Scope:
    words: dict[str, Any] = {"role": ROLE, "region": "us-east-1", "output_path": "s3://own/team"}
    return iam.Scope(**words | more)


def allowed(policy: iam.Policy, action: str) -> list[str]:
    """The resources on which a policy allows an action."""
    statements = [one for one in policy["Statement"] if action in one["Action"]]
    return [resource for one in statements for resource in one["Resource"]]


def test_who_starts_jobs_may_do_so_and_no_more() -> None:
    policy = iam.caller_policy(scope())
    jobs = "arn:aws:sagemaker:us-east-1:123456789012:training-job/*"
    assert allowed(policy, "sagemaker:CreateTrainingJob") == [jobs]
    assert allowed(policy, "s3:ListBucket") == ["arn:aws:s3:::own"]
    assert allowed(policy, "s3:GetObject") == ["arn:aws:s3:::own/team/*"]
    assert allowed(policy, "s3:PutObject") == ["arn:aws:s3:::own/team/trcomp/code/*"]
    (handed,) = (one for one in policy["Statement"] if one["Action"] == ["iam:PassRole"])
    assert handed["Resource"] == [ROLE]
    assert handed["Condition"]["StringEquals"]["iam:PassedToService"] == "sagemaker.amazonaws.com"
    text = json.dumps(policy)
    assert "kms" not in text
    assert not any(action.endswith("*") for one in policy["Statement"] for action in one["Action"])


def test_a_job_may_read_its_data_and_write_its_results() -> None:
    given = scope(
        reads=("s3://data/train",),
        writes=("s3://own/checkpoints",),
        image_uri="123456789012.dkr.ecr.us-east-1.amazonaws.com/team/trcomp:1",
        kms_key="arn:aws:kms:us-east-1:123456789012:key/k",
        vpc=True,
    )
    policy = iam.job_policy(given)
    team, data, kept = (
        f"arn:aws:s3:::{it}/*" for it in ("own/team", "data/train", "own/checkpoints")
    )
    assert allowed(policy, "s3:GetObject") == [team, data, kept]
    assert allowed(policy, "s3:PutObject") == [team, kept]
    repository = "arn:aws:ecr:us-east-1:123456789012:repository/team/trcomp"
    assert allowed(policy, "ecr:BatchGetImage") == [repository]
    for action in ("kms:GenerateDataKey", "ec2:CreateNetworkInterface", "logs:PutLogEvents"):
        assert allowed(policy, action), action
    plain = json.dumps(iam.job_policy(scope(image_uri="elsewhere.example/trcomp:1")))
    for service in ("kms:", "ec2:", "ecr:", "sagemaker:"):
        assert service not in plain


def test_trcomps_own_image_is_looked_up_pulled_and_pushed() -> None:
    own = "arn:aws:ecr:us-east-1:123456789012:repository/trcomp"
    assert allowed(iam.caller_policy(scope()), "ecr:DescribeImages") == [own]
    assert allowed(iam.job_policy(scope()), "ecr:BatchGetImage") == [own]
    given = scope(image_uri="123456789012.dkr.ecr.eu-west-1.amazonaws.com/team/it:1")
    assert allowed(iam.caller_policy(given), "ecr:DescribeImages") == []
    team = "arn:aws:ecr:eu-west-1:123456789012:repository/team/it"
    for action in ("ecr:CreateRepository", "ecr:PutImage", "ecr:UploadLayerPart"):
        assert allowed(iam.push_policy(given), action) == [team], action
    assert allowed(iam.push_policy(given), "ecr:GetAuthorizationToken") == ["*"]


def test_code_may_go_elsewhere() -> None:
    given = scope(code_location="s3://codes")
    policy = iam.caller_policy(given)
    code = "arn:aws:s3:::codes/trcomp/code/*"
    assert allowed(policy, "s3:PutObject") == [code]
    assert allowed(policy, "s3:GetObject") == ["arn:aws:s3:::own/team/*", code]
    assert allowed(policy, "s3:ListBucket") == ["arn:aws:s3:::own", "arn:aws:s3:::codes"]
    assert "arn:aws:s3:::codes/*" in allowed(iam.job_policy(given), "s3:GetObject")


def test_other_partitions_have_their_own_names() -> None:
    china = scope(role="arn:aws-cn:iam::123456789012:role/R", region="cn-north-1")
    for make in (iam.caller_policy, iam.job_policy):
        assert "arn:aws:" not in json.dumps(make(china))


def test_only_jobs_of_the_account_act_as_the_role() -> None:
    (statement,) = iam.trust_policy(scope())["Statement"]
    assert statement["Principal"] == {"Service": "sagemaker.amazonaws.com"}
    assert statement["Condition"] == {"StringEquals": {"aws:SourceAccount": "123456789012"}}


def test_what_is_no_role_and_no_place_is_told_at_once() -> None:
    with pytest.raises(SpecError, match="2 problems"):
        scope(role="Training", output_path="/here")


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert main(["iam-policy", "--role", ROLE]) == 0
    policy = json.loads(capsys.readouterr().out)
    assert allowed(policy, "s3:ListBucket") == ["arn:aws:s3:::sagemaker-eu-west-1-123456789012"]
    assert main(["iam-policy", "--role", ROLE, "--for", "job", "--output-path", "s3://own"]) == 0
    policy = json.loads(capsys.readouterr().out)
    assert allowed(policy, "s3:PutObject") == ["arn:aws:s3:::own/*"]
    assert main(["iam-policy", "--role", "R"]) == 64
    assert "the ARN of a role is needed" in capsys.readouterr().err
