"""A job in SageMaker without image_uri: its image is looked up in the account's own registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trcomp import BackendUnavailableError, Estimator, TrainingCompilerConfig
from trcomp.backends import ecr
from trcomp.testing import SageMaker

pytestmark = pytest.mark.e2e


def estimator(place: Path, sagemaker: SageMaker) -> Estimator:
    (place / "train.py").write_text("print('trained')\n")
    words: dict[str, Any] = {"role": sagemaker.role, "instance_type": "ml.m5.large"}
    plain = TrainingCompilerConfig(enabled=False)
    return Estimator(place / "train.py", compiler_config=plain, **words)


def push(uri: str) -> None:
    """What `trcomp push` leaves in the registry; the stand-in runs each job in this Python."""
    image = ecr.parsed(uri)
    assert image is not None
    ecr.ensure_repository(image)
    manifest = {"schemaVersion": 2, "config": {"digest": f"sha256:{'a' * 64}"}, "layers": []}
    manifest["mediaType"] = "application/vnd.docker.distribution.manifest.v2+json"
    where = {"repositoryName": image.repository, "imageTag": image.tag}
    ecr.client("ecr", image.region).put_image(**where, imageManifest=json.dumps(manifest))


def test_the_image_is_looked_up_before_anything_is_uploaded(
    tmp_path: Path, sagemaker: SageMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    job = estimator(tmp_path, sagemaker)
    uri = job.training_image_uri()
    assert uri is not None
    sagemaker.calls.clear()
    with pytest.raises(BackendUnavailableError) as caught:
        job.fit()
    assert f"The job's image is not there: {uri}" in str(caught.value)
    assert "trcomp push --cpu --region us-east-1" in str(caught.value)
    assert sagemaker.calls == ["DescribeImages"]

    push(uri)
    sagemaker.calls.clear()
    job.fit()
    assert "trained" in capsys.readouterr().out
    before = sagemaker.calls[: sagemaker.calls.index("CreateTrainingJob") + 1]
    assert before == ["DescribeImages", "S3.HEAD", "S3.HEAD", "S3.PUT", "CreateTrainingJob"]
    assert job.latest_training_job is not None
    described = sagemaker.client("sagemaker").describe_training_job(
        TrainingJobName=job.latest_training_job.name
    )
    assert described["AlgorithmSpecification"]["TrainingImage"] == uri


def test_who_may_not_look_is_told_which_action(tmp_path: Path, sagemaker: SageMaker) -> None:
    sagemaker.refuse("DescribeImages", "AccessDeniedException")
    with pytest.raises(BackendUnavailableError, match="the action ecr:DescribeImages"):
        estimator(tmp_path, sagemaker).fit()
