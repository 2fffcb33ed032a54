"""Where a job in SageMaker has its code from, whose session starts it, and who attaches to it."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest

from trcomp import Estimator, Job, JobFailedError, JobNotFoundError, TrainingCompilerConfig
from trcomp.testing import SageMaker

pytestmark = pytest.mark.e2e

PLAIN = TrainingCompilerConfig(enabled=False)
SCRIPT = "import sys; import lib.help; print('found', lib.help.NAME, *sys.argv[1:])\n"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A script, and beside its directory a library that it needs."""
    for name, text in {"code/train.py": SCRIPT, "lib/help.py": "NAME = 'help'\n"}.items():
        path = tmp_path / name
        path.parent.mkdir()
        path.write_text(text)
    return tmp_path


def words(sagemaker: SageMaker, **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"instance_type": "ml.m5.large", "compiler_config": PLAIN}
    return given | {"role": sagemaker.role, "image_uri": "image"} | more


def lines_of(estimator: Estimator, **request: Any) -> list[str]:
    estimator.fit(logs=False, **request)
    assert estimator.latest_training_job is not None
    return list(estimator.latest_training_job.logs())


def test_dependencies_reach_the_job(sagemaker: SageMaker, code: Path) -> None:
    estimator = Estimator(
        "train.py", code / "code", dependencies=[code / "lib"], **words(sagemaker)
    )
    assert "[rank 0] found help" in lines_of(estimator)


def test_a_repository_is_cloned_as_the_job_is_submitted(sagemaker: SageMaker, code: Path) -> None:
    names = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "."], [*names, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *arguments], cwd=code, check=True)
    estimator = Estimator(
        "train.py",
        "code",
        git_config={"repo": f"file://{code}"},
        dependencies=["lib"],
        **words(sagemaker),
    )
    assert "[rank 0] found help" in lines_of(estimator)
    local = Estimator("train.py", "code", git_config={"repo": str(code)}, dependencies=["lib"])
    assert "found help" in "\n".join(lines_of(local))


def archive(code: Path) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as packed:
        packed.add(code / "code" / "train.py", "train.py")
        packed.add(code / "lib", "lib")
    return stream.getvalue()


@pytest.mark.parametrize("place", ["packed/sourcedir.tar.gz", "tree"])
def test_code_that_lies_in_s3(place: str, sagemaker: SageMaker, code: Path) -> None:
    s3, bucket = sagemaker.client("s3"), sagemaker.bucket
    s3.put_object(Bucket=bucket, Key="packed/sourcedir.tar.gz", Body=archive(code))
    s3.put_object(Bucket=bucket, Key="tree/train.py", Body=SCRIPT.encode())
    s3.put_object(Bucket=bucket, Key="tree/lib/help.py", Body=b"NAME = 'help'\n")
    sagemaker.calls.clear()
    estimator = Estimator("train.py", f"s3://{bucket}/{place}", **words(sagemaker))
    estimator.fit(wait=False)
    assert sagemaker.calls[0] == "CreateTrainingJob"
    assert estimator.latest_training_job is not None
    estimator.latest_training_job.wait()
    assert "[rank 0] found help" in list(estimator.latest_training_job.logs())


def started_by_sdk_v2(sagemaker: SageMaker, name: str, uri: str) -> Job:
    """A job as SageMaker's SDK v2 creates it: the code is named, and comes through no channel."""
    settings = {
        "sagemaker_program": "train.py",
        "sagemaker_submit_directory": uri,
        "sagemaker_training_compiler_enabled": False,
        "sagemaker_container_log_level": 20,
        "sagemaker_region": "us-east-1",
        "lr": 0.5,
    }
    sagemaker.client("sagemaker").create_training_job(
        TrainingJobName=name,
        RoleArn=sagemaker.role,
        AlgorithmSpecification={"TrainingImage": "image", "TrainingInputMode": "File"},
        ResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 50},
        StoppingCondition={"MaxRuntimeInSeconds": 600},
        OutputDataConfig={"S3OutputPath": f"s3://{sagemaker.bucket}/out"},
        HyperParameters={key: json.dumps(value) for key, value in settings.items()},
        InputDataConfig=[
            {
                "ChannelName": channel,
                "DataSource": {
                    "S3DataSource": {
                        "S3DataType": "S3Prefix",
                        "S3Uri": f"s3://{sagemaker.bucket}/{channel}",
                        "S3DataDistributionType": "FullyReplicated",
                    }
                },
            }
            for channel in ("train", "model")
        ],
    )
    return Job(f"sagemaker://{name}")


def test_a_job_of_sdk_v2_runs_in_trcomps_container_and_can_be_attached_to(
    sagemaker: SageMaker, code: Path
) -> None:
    s3, bucket = sagemaker.client("s3"), sagemaker.bucket
    for key in ("train/a.txt", "model/model.tar.gz"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    uri = f"s3://{bucket}/old/sourcedir.tar.gz"
    s3.put_object(Bucket=bucket, Key="old/sourcedir.tar.gz", Body=archive(code))
    job = started_by_sdk_v2(sagemaker, "old", uri)
    assert job.wait(60) == "Completed"
    assert "[rank 0] found help --lr 0.5" in list(job.logs())

    estimator = Estimator.attach("old")
    assert estimator.latest_training_job is not None
    assert estimator.latest_training_job.status() == "Completed"
    assert estimator.hyperparameters() == {"lr": 0.5}
    spec = estimator.to_spec(job_name="a")
    assert (spec.source_dir, spec.entry_point) == (uri, "train.py")
    assert spec.compiler_config == PLAIN
    assert [item.channel for item in spec.inputs] == ["train", "model"]
    assert spec.managed["volume_size"] == 50
    # What it ran can be run again.
    assert "[rank 0] found help --lr 0.5" in lines_of(estimator, job_name="again")


def test_code_that_cannot_be_fetched_fails_the_job(sagemaker: SageMaker) -> None:
    s3, bucket = sagemaker.client("s3"), sagemaker.bucket
    for key in ("train/a.txt", "model/model.tar.gz"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    job = started_by_sdk_v2(sagemaker, "lost", f"s3://{bucket}/none/sourcedir.tar.gz")
    with pytest.raises(JobFailedError, match="Fetching the code"):
        job.wait(60)
    assert any("cannot be fetched" in line for line in job.logs())


def test_a_job_of_trcomp_is_attached_to_with_all_its_words(
    sagemaker: SageMaker, code: Path
) -> None:
    first = Estimator(
        "train.py",
        code / "code",
        dependencies=[code / "lib"],
        **words(
            sagemaker,
            hyperparameters={"lr": 0.1, "name": "a b"},
            arguments=["data", "--layer=1", "--layer=2"],
            environment={"A": "b"},
            distribution={"torch_distributed": {"enabled": True}},
            metric_definitions=[{"Name": "loss", "Regex": "loss (.*)"}],
            max_run=600,
            debugger_hook_config={"S3OutputPath": f"s3://{sagemaker.bucket}/debug"},
        ),
    )
    first.fit(job_name="first", logs=False)
    second = Estimator.attach("sagemaker://first")
    mine, its = first.plan(job_name="a"), second.plan(job_name="a")
    assert its.request == mine.request  # type: ignore[attr-defined]
    with pytest.raises(JobNotFoundError):
        Estimator.attach("nobody")


def test_a_session_says_where_aws_is_reached(
    sagemaker: SageMaker, code: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session = boto3.Session(
        aws_access_key_id="other", aws_secret_access_key="other", region_name="us-east-1"
    )
    sagemaker.client("s3").create_bucket(Bucket="own-bucket")
    given = SimpleNamespace(
        boto_session=session, _default_bucket_name_override="own-bucket", default_bucket_prefix="in"
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    estimator = Estimator(
        "train.py",
        code / "code",
        dependencies=[code / "lib"],
        sagemaker_session=given,
        **words(sagemaker),
    )
    estimator.fit(wait=False, job_name="by-session")
    job = estimator.latest_training_job
    assert job is not None
    found = job.describe()
    assert found["arn"].split(":")[3] == "us-east-1"
    keys = session.client("s3").list_objects_v2(Bucket="own-bucket")["Contents"]
    assert [item["Key"].startswith("in/trcomp/code/") for item in keys] == [True]
    assert Estimator.attach("by-session", given).latest_training_job is not None


def test_hosts_that_distribution_leaves_out_run_the_script_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRCOMP_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").write_text(
        "import os, json\n"
        "print('group', os.environ['SM_CURRENT_INSTANCE_GROUP'], os.environ['SM_IS_HETERO'],"
        " os.environ.get('RANK'), os.environ.get('WORLD_SIZE'))\n"
    )
    groups = [
        {"InstanceGroupName": "data", "InstanceType": "ml.c5.large", "InstanceCount": 1},
        {"InstanceGroupName": "ranks", "InstanceType": "ml.m5.large", "InstanceCount": 2},
    ]
    estimator = Estimator(
        "train.py",
        tmp_path,
        instance_type="local_process",
        instance_groups=groups,
        distribution={"torch_distributed": {"enabled": True}, "instance_groups": ["ranks"]},
    )
    found = [line.split("group ")[1] for line in lines_of(estimator) if "group " in line]
    assert sorted(found) == ["data true None None", "ranks true 0 2", "ranks true 1 2"]


def test_a_sweep_of_jobs_at_once(sagemaker: SageMaker, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(
        "import sys\nprint('loss', (float(sys.argv[2]) - 0.03) ** 2)\n"
    )
    estimator = Estimator(
        "train.py",
        tmp_path / "code",
        **words(sagemaker, metric_definitions=[{"Name": "loss", "Regex": "loss ([-+0-9.e]+)"}]),
    )
    jobs = {}
    for rate in (0.1, 0.03):
        estimator.set_hyperparameters(lr=rate)
        name = f"sweep-{rate}".replace(".", "-")
        estimator.fit(wait=False, job_name=name)
        jobs[rate] = Job(f"sagemaker://{name}")
    losses = {}
    for rate, job in jobs.items():
        job.wait(120)
        losses[rate] = job.metrics()["loss"][-1]
    assert min(losses, key=lambda rate: losses[rate]) == 0.03
