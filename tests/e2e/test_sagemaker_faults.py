"""Jobs in SageMaker when something goes wrong, against the stand-in: what is told and kept."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.e2e.test_sagemaker import estimator, job_of
from trcomp import (
    BackendUnavailableError,
    Job,
    JobFailedError,
    JobLimitError,
    QuotaError,
    SpecError,
)
from trcomp.backends import sagemaker as backend
from trcomp.testing import SageMaker

pytestmark = pytest.mark.e2e

SPOT: dict[str, Any] = {"use_spot_instances": True, "max_run": 600, "max_wait": 1200}
RESUMING = """
    import os, pathlib, sys, time
    place = pathlib.Path(os.environ["SM_MODEL_DIR"]).parent / "checkpoints" / "step"
    start = int(place.read_text()) if place.exists() else 0
    print("start", start, flush=True)
    for step in range(start, 6):
        place.write_text(str(step + 1))
        if start == 0 and step == 2:
            print("here", flush=True)
            PAUSE
    print("loss 0.25", flush=True)
"""


def preferring(plan: Any, *types: str) -> Any:
    """A plan whose request names several instance types in order."""
    resources = {**plan.request["ResourceConfig"]}
    del resources["InstanceType"]
    resources["InstancePreferences"] = [{"InstanceType": kind} for kind in types]
    plan.request["ResourceConfig"] = resources
    return plan


def test_spot_instances_that_are_taken_away_cost_no_more_than_since_the_last_checkpoint(
    sagemaker: SageMaker, tmp_path: Path
) -> None:
    uri = f"s3://{sagemaker.bucket}/checkpoints"
    script = RESUMING.replace("PAUSE", "time.sleep(600)")
    job = estimator(tmp_path, sagemaker, script, checkpoint_s3_uri=uri, **SPOT)
    job.fit(wait=False, job_name="spot")
    lines = []
    for line in job_of(job).logs(follow=True):
        lines.append(line)
        if line.endswith("here"):
            sagemaker.interrupt("spot")
    starts = [line for line in lines if "start" in line and line.startswith("[rank 0]")]
    assert starts == ["[rank 0] start 0", "[rank 0] start 3"]
    record = job_of(job).record()
    assert record.status == "Completed"
    assert any(step.message.startswith("Interrupted") for step in record.transitions)
    # Both streams of the host are there for whoever comes later, each line once.
    assert sorted(job_of(job).logs()) == sorted(lines)


def test_a_job_on_spot_waits_for_instances_for_as_long_as_it_may(
    sagemaker: SageMaker, tmp_path: Path
) -> None:
    sagemaker.no_capacity.add("ml.m5.large")
    words = {"use_spot_instances": True, "max_run": 1, "max_wait": 1}
    with pytest.raises(JobLimitError, match="max_wait"):
        estimator(tmp_path, sagemaker, "print()", **words).fit(logs=False)


def test_of_several_types_that_is_taken_which_quota_and_capacity_admit(
    sagemaker: SageMaker, tmp_path: Path
) -> None:
    sagemaker.no_quota.add("ml.p5.48xlarge")
    sagemaker.no_capacity.add("ml.p4d.24xlarge")
    job = estimator(tmp_path, sagemaker, "print('hello')")
    plan = preferring(
        job.plan(job_name="several"), "ml.p5.48xlarge", "ml.p4d.24xlarge", "ml.m5.large"
    )
    with pytest.warns(UserWarning, match=r"ml\.p5\.48xlarge is left out.*Next is ml\.p4d"):
        backend.submit(plan)
    assert Job("sagemaker://several").wait(60) == "Completed"
    assert Job("sagemaker://several").record().instance_type == "ml.m5.large"


def test_a_quota_that_admits_no_type_is_named(sagemaker: SageMaker, tmp_path: Path) -> None:
    sagemaker.no_quota.update({"ml.m5.large", "ml.p5.48xlarge"})
    job = estimator(tmp_path, sagemaker, "print()")
    with pytest.raises(QuotaError, match=r"'ml\.m5\.large for training job usage' is 0"):
        job.fit()
    plan = preferring(job.plan(), "ml.p5.48xlarge", "ml.m5.large")
    with pytest.warns(UserWarning, match="is left out"), pytest.raises(QuotaError):
        backend.submit(plan)
    assert sagemaker.control.jobs == {}


def test_instances_that_stayed_warm_are_told_of(
    sagemaker: SageMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = estimator(tmp_path, sagemaker, "print()", keep_alive_period_in_seconds=600)
    job.fit(job_name="first", logs=False)
    first = job_of(job)
    assert "warm for the next job" in str(first.describe()["warm_pool"])
    job.fit(job_name="second", logs=False)
    assert "took over the instances of first" in capsys.readouterr().out
    assert job_of(job).describe()["reuses"] == "first"
    assert "went over to second" in str(first.describe()["warm_pool"])
    other = estimator(tmp_path, sagemaker, "print()")
    other.fit(job_name="third", logs=False)
    assert job_of(other).describe()["reuses"] is None


def test_an_upload_that_is_cut_half_way_is_made_again_whole(
    sagemaker: SageMaker, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "table.bin").write_bytes(bytes(range(256)) * 4000)
    job = estimator(tmp_path, sagemaker, "print(len(open('table.bin', 'rb').read()))")
    sagemaker.cut("S3.PUT")
    job.fit(logs=False)
    assert sagemaker.calls.count("S3.PUT") > 1
    assert "[rank 0] 1024000" in list(job_of(job).logs())


def test_an_upload_that_never_succeeds_leaves_nothing(
    sagemaker: SageMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What botocore waits between its tries grows to most of a minute.
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda seconds: None))
    sagemaker.cut("S3.PUT", times=100)
    with pytest.raises(BackendUnavailableError, match="upload the code to s3://"):
        estimator(tmp_path, sagemaker, "print()").fit(logs=False)
    assert sagemaker.control.jobs == {}
    assert sagemaker.client("s3").list_objects_v2(Bucket=sagemaker.bucket)["KeyCount"] == 0


def test_lines_in_more_than_fifty_streams_that_come_late_are_read_once_and_in_order(
    sagemaker: SageMaker, tmp_path: Path
) -> None:
    sagemaker.logs.streams_per_host = 60
    sagemaker.logs.delay_seconds = 0.3
    job = estimator(tmp_path, sagemaker, "for n in range(150): print('line', n, flush=True)")
    job.fit(wait=False)
    lines = [line for line in job_of(job).logs(follow=True) if line.startswith("[rank 0]")]
    assert sorted(lines) == sorted(f"[rank 0] line {n}" for n in range(150))
    assert [x for x in job_of(job).logs() if x.startswith("[rank 0]")] == [
        f"[rank 0] line {n}" for n in range(150)
    ]


def test_a_stream_that_is_lost_takes_no_other_line_with_it(
    sagemaker: SageMaker, tmp_path: Path
) -> None:
    script = "import time\nprint('before', flush=True)\ntime.sleep(3)\nprint('after', flush=True)"
    job = estimator(tmp_path, sagemaker, script)
    job.fit(wait=False, job_name="lost")
    lines = []
    sagemaker.refuse("GetLogEvents", "ResourceNotFoundException", "The stream does not exist.")
    for line in job_of(job).logs(follow=True):
        lines.append(line)
        if line.endswith("before"):
            sagemaker.lose_stream("lost")
    assert lines.count("[rank 0] before") == 1
    assert lines[-1] == "[rank 0] after"


def test_credentials_that_are_renewed_while_a_job_is_watched_are_taken(
    sagemaker: SageMaker, tmp_path: Path
) -> None:
    job = estimator(tmp_path, sagemaker, "print('hello')")
    sagemaker.refuse("DescribeTrainingJob", "ExpiredTokenException", "expired", after=1)
    sagemaker.refuse("DescribeLogStreams", "ExpiredTokenException", "expired", times=2)
    job.fit(job_name="renewed")
    assert job_of(job).status() == "Completed"


def test_a_denied_call_of_s3_names_the_action_and_whom_it_was_denied(
    sagemaker: SageMaker, tmp_path: Path
) -> None:
    sagemaker.refuse("S3.PUT", "AccessDenied", "Access Denied")
    who = re.escape("Allow arn:aws:sts::123456789012:user/moto the action s3:PutObject")
    with pytest.raises(BackendUnavailableError, match=who):
        estimator(tmp_path, sagemaker, "print()").fit()


def test_a_role_that_sagemaker_cannot_be_is_told(sagemaker: SageMaker, tmp_path: Path) -> None:
    role = "arn:aws:iam::999999999999:role/Other"
    words = {"output_path": f"s3://{sagemaker.bucket}", "role": role}
    with pytest.raises(SpecError, match=rf"role: got '{role}'.*[\s\S]*sagemaker\.amazonaws\.com"):
        estimator(tmp_path, sagemaker, "print()", **words).fit()


def test_a_script_that_fails_goes_on_from_its_last_checkpoint(
    sagemaker: SageMaker, tmp_path: Path
) -> None:
    uri = f"s3://{sagemaker.bucket}/checkpoints"
    script = RESUMING.replace("PAUSE", "sys.exit(3)")
    metrics = [{"Name": "loss", "Regex": "loss ([0-9.]+)"}]
    job = estimator(tmp_path, sagemaker, script, checkpoint_s3_uri=uri, metric_definitions=metrics)
    job.fit(job_name="again", logs=False, retries=2)
    assert job_of(job).name == "again-2"
    assert "[rank 0] start 3" in list(job_of(job).logs())
    assert job_of(job).metrics() == {"loss": [0.25]}
    with pytest.raises(JobFailedError):
        estimator(tmp_path, sagemaker, "raise SystemExit(1)", checkpoint_s3_uri=uri).fit(
            job_name="never", logs=False, retries=1
        )
    assert sorted(sagemaker.control.jobs) == ["again", "again-2", "never", "never-2"]


def test_what_cannot_be_tried_again_is_told_before_anything_starts(
    sagemaker: SageMaker, tmp_path: Path
) -> None:
    job = estimator(tmp_path, sagemaker, "print()")
    with pytest.raises(SpecError) as caught:
        job.fit(wait=False, retries=2)
    assert len(caught.value.problems) == 2
    with pytest.raises(SpecError, match="retries: got -1"):
        job.fit(retries=-1)
    assert sagemaker.control.jobs == {}
