"""What SageMaker says of a job, in trcomp's words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from trcomp import (
    JobCapacityError,
    JobFailedError,
    JobLimitError,
    JobStatus,
    JobStoppedError,
    job_page,
)
from trcomp.backends.sagemaker_record import to_record
from trcomp.job import raise_for_outcome

BEGIN = datetime(2026, 11, 30, 12, tzinfo=UTC)


def description(*states: str, status: str = "InProgress", **more: Any) -> dict[str, Any]:
    steps = [
        {"Status": state, "StartTime": BEGIN + timedelta(seconds=index), "StatusMessage": ""}
        for index, state in enumerate(states)
    ]
    return {
        "TrainingJobName": "job",
        "TrainingJobArn": "arn:aws:sagemaker:eu-west-1:123456789012:training-job/job",
        "TrainingJobStatus": status,
        "SecondaryStatus": states[-1] if states else "Starting",
        "SecondaryStatusTransitions": steps,
        "CreationTime": BEGIN,
        "LastModifiedTime": BEGIN + timedelta(minutes=1),
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out/"},
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 2},
        **more,
    }


def test_states_and_their_times() -> None:
    states = ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    end = BEGIN + timedelta(minutes=2)
    model = {"S3ModelArtifacts": "s3://bucket/out/job/output/model.tar.gz"}
    found = to_record(
        description(*states, status="Completed", TrainingEndTime=end, ModelArtifacts=model)
    )
    assert [(step.status, (step.time - BEGIN).total_seconds()) for step in found.transitions] == [
        (JobStatus.STARTING, 0),
        (JobStatus.STARTING, 1),
        (JobStatus.TRAINING, 2),
        (JobStatus.UPLOADING, 3),
        (JobStatus.COMPLETED, 120),
    ]
    assert found.hosts == ("algo-1", "algo-2")
    assert found.model == "s3://bucket/out/job/output/model.tar.gz"
    assert found.output == "s3://bucket/out/job/output/output.tar.gz"
    assert found.place.startswith("https://eu-west-1.console.aws.amazon.com/sagemaker/")
    raise_for_outcome(found)


def test_a_job_is_stopping_as_soon_as_sagemaker_says_so() -> None:
    assert to_record(description("Training", status="Stopping")).status is JobStatus.STOPPING
    assert to_record(description("Uploading", status="Stopping")).status is JobStatus.UPLOADING


def test_the_console_of_each_partition() -> None:
    arn = "arn:aws-cn:sagemaker:cn-north-1:123456789012:training-job/job"
    found = to_record(description(TrainingJobArn=arn))
    assert found.place.startswith("https://cn-north-1.console.amazonaws.cn/")


def test_a_job_is_known_before_its_first_transition() -> None:
    found = to_record(description())
    assert found.status is JobStatus.STARTING
    assert not found.status.ended


def test_a_last_state_does_not_end_a_job_that_sagemaker_has_not_ended() -> None:
    assert to_record(description("Training", "Completed")).status is JobStatus.TRAINING


@pytest.mark.parametrize(
    ("state", "status", "error"),
    [
        ("Stopped", "Stopped", JobStoppedError),
        ("MaxRuntimeExceeded", "Stopped", JobLimitError),
        ("MaxWaitTimeExceeded", "Stopped", JobLimitError),
        ("Failed", "Failed", JobFailedError),
    ],
)
def test_how_a_job_ended(state: str, status: str, error: type[Exception]) -> None:
    found = to_record(description("Training", state, status=status, FailureReason="x"))
    with pytest.raises(error) as caught:
        raise_for_outcome(found)
    assert type(caught.value) is error


def failed(reason: str) -> JobFailedError:
    found = to_record(description("Training", "Failed", status="Failed", FailureReason=reason))
    with pytest.raises(JobFailedError) as caught:
        raise_for_outcome(found)
    return caught.value


def test_a_failure_file_as_far_as_sagemaker_shows_it() -> None:
    error = failed(
        "AlgorithmError: ValueError: bad\nrank 5 on host algo-2, exit code 3\n"
        "Traceback (most recent call last):\n  File, exit code: 3"
    )
    assert (error.exit_code, error.rank, error.host) == (3, 5, "algo-2")
    assert error.traceback == "Traceback (most recent call last):\n  File"


@pytest.mark.parametrize(
    ("reason", "shown", "kind"),
    [
        ("AlgorithmError: , exit code: 137", "exit code 137", JobFailedError),
        ("CapacityError: Unable to provision.", "Unable to provision.", JobCapacityError),
        ("ClientError: Data download failed", "ClientError: Data download", JobFailedError),
        ("InternalServerError: Try again.", "InternalServerError: Try", JobFailedError),
        ("Something new", "Something new", JobFailedError),
        ("", "exit code 1", JobFailedError),
    ],
)
def test_failures_without_a_script_in_them(reason: str, shown: str, kind: type) -> None:
    error = failed(reason)
    assert shown in str(error)
    assert type(error) is kind


def test_a_running_job_says_on_what_it_runs_what_it_costs_so_far_and_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "prices.toml"
    table.write_text(
        'as_of = "2026-11-01"\nregion = "eu-west-1"\n'
        '[prices]\n"ml.m5.large" = {on_demand = 0.5, spot = 0.25}\n'
    )
    monkeypatch.setenv("TRCOMP_PRICES", str(table))
    given = description("Training", TrainingStartTime=BEGIN, EnableManagedSpotTraining=True)
    found = to_record(given)
    now = BEGIN + timedelta(hours=3)
    assert found.details(now) == [
        ("instances", "2 x ml.m5.large, spot"),
        ("billed", "10800 s each"),
        ("cost", "about $1.50, as of 2026-11-01, TRCOMP_PRICES"),
    ]
    assert found.links["log"].endswith(
        "/cloudwatch/home?region=eu-west-1#logsV2:log-groups/log-group/"
        "$252Faws$252Fsagemaker$252FTrainingJobs$3FlogStreamNameFilter$3Djob$252F"
    )
    assert found.links["results"].endswith(
        "/s3/buckets/bucket?region=eu-west-1&prefix=out/job/output/"
    )
    monkeypatch.delenv("TRCOMP_PRICES")
    assert [name for name, _ in found.details(now)] == ["instances", "billed"]
    assert "costunknown: TRCOMP_PRICES can name a table of prices" in (
        job_page.page(found, {}, []).replace("</dt><dd>", "")
    )


def test_what_is_billed_in_the_end_is_sagemakers_own_count() -> None:
    found = to_record(description("Training", "Completed", status="Completed"))
    assert [name for name, _ in found.details(BEGIN)] == ["instances"]
    ended = description("Training", "Completed", status="Completed", BillableTimeInSeconds=61)
    assert ("billed", "61 s each") in to_record(ended).details(BEGIN)


@pytest.mark.parametrize(
    ("resources", "shown"),
    [
        ({"InstancePreferences": [{"InstanceType": "a"}, {"InstanceType": "b"}]}, "1 x a or b"),
        (
            {
                "InstancePreferences": [{"InstanceType": "a"}, {"InstanceType": "b"}],
                "SelectedInstanceType": "b",
                "SelectedInstanceCount": 4,
            },
            "4 x b",
        ),
        (
            {
                "InstanceGroups": [
                    {"InstanceType": "a", "InstanceCount": 1},
                    {"InstanceType": "b", "InstanceCount": 2},
                ]
            },
            "3 x a + b",
        ),
    ],
)
def test_instances_of_several_types(resources: dict[str, Any], shown: str) -> None:
    found = to_record(description("Training", ResourceConfig=resources))
    assert found.details(BEGIN)[0] == ("instances", shown)


def test_a_download_that_is_denied_names_the_role() -> None:
    role = "arn:aws:iam::123456789012:role/R"
    reason = "ClientError: Data download failed: An error occurred (AccessDenied)"
    given = description("Training", status="Failed", FailureReason=reason, RoleArn=role)
    failure = to_record(given).failure
    assert failure is not None
    assert role in failure.message
