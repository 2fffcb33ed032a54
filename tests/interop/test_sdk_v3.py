"""What holds between trcomp and SageMaker's SDK v3; `make interop` runs it where that is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sagemaker.train", reason="SageMaker's SDK v3 is not installed")

from sagemaker.core.helper import iam_role_resolver
from sagemaker.core.helper.session_helper import Session
from sagemaker.core.training.configs import (
    Compute,
    InputData,
    Networking,
    SourceCode,
    StoppingCondition,
)
from sagemaker.core.workflow.pipeline_context import PipelineSession
from sagemaker.mlops.workflow.pipeline import Pipeline
from sagemaker.mlops.workflow.steps import TrainingStep

from trcomp import Estimator, Job, SpecError, TrainingCompilerConfig
from trcomp.testing import SageMaker

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.e2e]

PLAIN = TrainingCompilerConfig(enabled=False)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("import sys\nprint('found', *sys.argv[1:])\n")
    return tmp_path / "code"


@pytest.fixture(autouse=True)
def role(sagemaker: SageMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK looks at the role, and asks IAM what it may do, which moto cannot say."""
    statement = {
        "Effect": "Allow",
        "Action": "sts:AssumeRole",
        "Principal": {"Service": "sagemaker.amazonaws.com"},
    }
    sagemaker.client("iam").create_role(
        RoleName=sagemaker.role.rpartition("/")[2],
        AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [statement]}),
    )
    monkeypatch.setattr(iam_role_resolver, "_simulate_denied_actions", lambda *_: ([], []))


def estimator(sagemaker: SageMaker, code: Path, **words: Any) -> Estimator:
    given: dict[str, Any] = {"instance_type": "ml.m5.large", "compiler_config": PLAIN}
    given |= {"role": sagemaker.role, "image_uri": "image", "max_run": 600}
    return Estimator("train.py", code, **given | words)


def test_a_model_trainer_asks_for_the_same_job(sagemaker: SageMaker, code: Path) -> None:
    ours = estimator(
        sagemaker,
        code,
        hyperparameters={"lr": 0.5, "name": "it's"},
        environment={"A": "b"},
        metric_definitions=[{"Name": "loss", "Regex": "loss (.*)"}],
        checkpoint_s3_uri=f"s3://{sagemaker.bucket}/checkpoints",
        max_retry_attempts=2,
        subnets=["subnet-1"],
        security_group_ids=["sg-1"],
        encrypt_inter_container_traffic=True,
        enable_remote_debug=True,
        tags={"team": "vision"},
        tensorboard_output_config={"S3OutputPath": f"s3://{sagemaker.bucket}/board"},
    )
    sagemaker.client("s3").put_object(Bucket=sagemaker.bucket, Key="data/a.txt", Body=b"x")
    inputs = {"train": f"s3://{sagemaker.bucket}/data"}
    trainer = ours.to_model_trainer(inputs, Session())
    trainer.train(wait=False)
    (name,) = sagemaker.control.jobs
    assert name.startswith("train-")
    job = Job(f"sagemaker://{name}")
    assert job.wait(120) == "Completed"
    assert "[rank 0] found --lr 0.5 --name it's" in list(job.logs())
    request = ours.plan(inputs, job_name=name).request  # type: ignore[attr-defined]
    del request["HyperParameters"]["sagemaker_job_name"]
    its = sagemaker.control.jobs[name].description()
    assert {field: its.get(field) for field in request} == request


def test_what_a_model_trainer_cannot_say_is_refused(sagemaker: SageMaker, code: Path) -> None:
    ours = estimator(
        sagemaker, code, disable_profiler=True, container_arguments=["x"], debugger_hook_config=True
    )
    with pytest.raises(SpecError) as caught:
        ours.to_model_trainer()
    text = str(caught.value)
    assert "3 problems" in text
    for word in ("disable_profiler", "container_arguments", "debugger_hook_config"):
        assert word in text
    with pytest.raises(SpecError, match="a type of SageMaker's"):
        Estimator("train.py", code).to_model_trainer()
    assert "S3.PUT" not in sagemaker.calls[1:]


def test_a_pipeline_trains_by_it(sagemaker: SageMaker, code: Path) -> None:
    ours = estimator(sagemaker, code, hyperparameters={"lr": 0.5})
    trainer = ours.to_model_trainer(sagemaker_session=PipelineSession())
    step = TrainingStep(name="train", step_args=trainer.train())
    pipeline = Pipeline(name="pipeline", steps=[step], sagemaker_session=PipelineSession())
    (found,) = json.loads(pipeline.definition())["Steps"]
    assert found["Type"] == "Training"
    arguments = found["Arguments"]
    assert arguments["AlgorithmSpecification"]["TrainingImage"] == "image"
    assert arguments["HyperParameters"]["lr"] == "0.5"
    assert arguments["HyperParameters"]["sagemaker_program"] == '"train.py"'


def test_objects_of_the_sdk_say_what_they_say_there(sagemaker: SageMaker, code: Path) -> None:
    ours = Estimator(
        source_code=SourceCode(source_dir=str(code), entry_script="train.py"),
        compute=Compute(instance_type="ml.p4d.24xlarge", instance_count=2, volume_size_in_gb=100),
        networking=Networking(subnets=["subnet-1"], security_group_ids=["sg-1"]),
        stopping_condition=StoppingCondition(max_runtime_in_seconds=60),
        role=sagemaker.role,
        image_uri="image",
        sagemaker_session=Session(default_bucket="own-bucket"),
    )
    inputs = [InputData(channel_name="train", data_source="s3://bucket/train", content_type="x/y")]
    request = ours.plan(inputs, job_name="job").request  # type: ignore[attr-defined]
    assert request["ResourceConfig"] == {
        "InstanceType": "ml.p4d.24xlarge",
        "InstanceCount": 2,
        "VolumeSizeInGB": 100,
    }
    assert request["VpcConfig"] == {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]}
    assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 60}
    assert request["OutputDataConfig"] == {"S3OutputPath": "s3://own-bucket"}
    assert request["InputDataConfig"][0] == {
        "ChannelName": "train",
        "ContentType": "x/y",
        "DataSource": {
            "S3DataSource": {
                "S3Uri": "s3://bucket/train",
                "S3DataType": "S3Prefix",
                "S3DataDistributionType": "FullyReplicated",
            }
        },
    }
