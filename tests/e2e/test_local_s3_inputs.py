"""Channels in S3 of jobs on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import s3_server
from tests.s3_server import BUCKET
from trcomp import BackendUnavailableError, Estimator, Job, SpecError, TrainingCompilerConfig
from trcomp.inputs import TrainingInput

pytestmark = pytest.mark.e2e


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of S3 with some objects."""
    with s3_server.running(monkeypatch) as client:
        for key in ("day/a.txt", "day/deep/b.txt", "day/", "day/../../escaped", "one.csv"):
            client.put_object(Bucket=BUCKET, Key=key, Body=key.encode())
        yield client


@pytest.fixture
def estimator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Estimator:
    monkeypatch.setenv("TRCOMP_HOME", str(tmp_path / "home"))
    script = tmp_path / "train.py"
    script.write_text(
        "import os\n"
        "for name in ('DAY', 'ONE'):\n"
        "    root = os.environ[f'SM_CHANNEL_{name}']\n"
        "    for place, _, files in os.walk(root):\n"
        "        for file in files:\n"
        "            path = os.path.join(place, file)\n"
        "            print(name, os.path.relpath(path, root), open(path).read())\n"
    )
    return Estimator(script, compiler_config=TrainingCompilerConfig(enabled=False))


def test_channels_are_fetched_before_the_job_starts(
    bucket: Any, estimator: Estimator, tmp_path: Path
) -> None:
    inputs = {"day": f"s3://{BUCKET}/day", "one": f"s3://{BUCKET}/one.csv"}
    assert f"day <- s3://{BUCKET}/day" in str(estimator.plan(inputs, job_name="j"))
    estimator.fit(inputs, job_name="j", logs="None")
    lines = {line.removeprefix("[rank 0] ") for line in Job("j").logs()}
    assert {
        "DAY a.txt day/a.txt",
        "DAY deep/b.txt day/deep/b.txt",
        "DAY escaped day/../../escaped",
        "ONE one.csv one.csv",
    } <= lines


def test_a_channel_that_cannot_be_read_is_told_before_anything_is_written(
    bucket: Any, estimator: Estimator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BackendUnavailableError, match=f"aws s3 ls s3://{BUCKET}/none"):
        estimator.fit(f"s3://{BUCKET}/none")
    with pytest.raises(BackendUnavailableError, match="NoSuchBucket"):
        estimator.fit("s3://no-such-bucket/x")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(BackendUnavailableError, match=r"no AWS credentials(.|\n)*aws configure"):
        estimator.fit(f"s3://{BUCKET}/day")
    assert not (tmp_path / "home").exists()


def test_what_a_local_job_cannot_do_with_s3_is_told(estimator: Estimator) -> None:
    with pytest.raises(SpecError) as caught:
        estimator.plan({"a": TrainingInput("s3://b-c/x", distribution="ShardedByS3Key")})
    assert "inputs['a'].distribution: got 'ShardedByS3Key'" in str(caught.value)
