"""Jobs in SageMaker, against the stand-in: what is typed, uploaded, run, printed and left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trcomp import (
    BackendUnavailableError,
    Estimator,
    Job,
    JobCapacityError,
    JobFailedError,
    JobLimitError,
    JobNotFoundError,
    JobStatus,
    JobStoppedError,
    SpecError,
    TrainingCompilerConfig,
)
from trcomp.backends import sagemaker as backend
from trcomp.cli import main
from trcomp.huggingface import HuggingFace
from trcomp.pytorch import PyTorch
from trcomp.testing import SageMaker

pytestmark = pytest.mark.e2e

PLAIN = TrainingCompilerConfig(enabled=False)


def estimator(place: Path, sagemaker: SageMaker, script: str, **words: Any) -> Estimator:
    """A job of a script that needs no framework."""
    code = place / "code"
    code.mkdir(exist_ok=True)
    lines = script.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    (code / "train.py").write_text("\n".join(line[indent:] for line in lines) + "\n")
    given: dict[str, Any] = {"instance_type": "ml.m5.large", "compiler_config": PLAIN}
    given |= {"role": sagemaker.role, "image_uri": "image"} | words
    return Estimator("train.py", code, **given)


def job_of(estimator: Estimator) -> Job:
    assert estimator.latest_training_job is not None
    return estimator.latest_training_job


SCRIPTS = Path(__file__).parent / "scripts"


FROZEN = (
    "763104351884.dkr.ecr.us-east-1.amazonaws.com/huggingface-pytorch-trcomp-training:"
    "1.11.0-transformers4.21.1-gpu-py38-cu113-ubuntu20.04"
)
"""An image of the Training Compiler; the stand-in runs each job in this Python."""
WHERE: dict[str, Any] = {
    "source_dir": SCRIPTS,
    # This machine has no GPUs.
    "environment": {"GPU_NUM_DEVICES": "2", "TRCOMP_CACHE": "off"},
}
"""What the launches of the Training Compiler's time are given beside their own words."""


def by_image(role: str) -> Estimator:
    """The script starts its ranks itself."""
    with pytest.warns(UserWarning, match="it is frozen"):
        return PyTorch(
            entry_point="regression.py",
            role=role,
            instance_type="ml.p4d.24xlarge",
            instance_count=1,
            image_uri=FROZEN,
            **WHERE,
        )


def by_compiler(role: str) -> Estimator:
    """The Training Compiler starts them."""
    distribution = {"pytorchxla": {"enabled": True}}
    with pytest.warns(UserWarning, match="it is frozen"):
        return HuggingFace(
            entry_point="regression.py",
            role=role,
            instance_type="ml.p4d.24xlarge",
            instance_count=1,
            transformers_version="4.21.1",
            pytorch_version="1.11.0",
            compiler_config=TrainingCompilerConfig(),
            distribution=distribution,
            **WHERE,
        )


@pytest.mark.slow
@pytest.mark.parametrize("launch", [by_image, by_compiler])
def test_a_launch_for_training_compiler_trains(
    launch: Callable[[str], Estimator], sagemaker: SageMaker
) -> None:
    estimator = launch(sagemaker.role)
    estimator.fit(logs=False)
    job = job_of(estimator)
    found = [json.loads(line.split("RESULT ")[1]) for line in job.logs() if "RESULT " in line]
    assert sorted(result["rank"] for result in found) == [0, 1]
    for result in found:
        assert result["world"] == 2
        # The same four batches three times.
        assert sum(result["losses"][8:]) < sum(result["losses"][:4])
    assert {rank["steps"] for rank in job.report()["ranks"]} == {12}


WRITER = """
    import os
    with open(os.path.join(os.environ["SM_MODEL_DIR"], "model.txt"), "w") as file:
        file.write("weights")
"""

WHOLE = """
    import json, os, sys
    print("arguments", sys.argv[1:])
    print("channels", json.loads(os.environ["SM_CHANNELS"]))
    print("data", open(os.path.join(os.environ["SM_CHANNEL_TRAIN"], "a.txt")).read())
    print("variable", os.environ["MINE"], os.environ["TRAINING_JOB_NAME"], os.environ["AWS_REGION"])
    print("home", "TRCOMP_HOME" in os.environ)
    with open(os.path.join(os.environ["SM_MODEL_DIR"], "model.txt"), "w") as file:
        file.write("weights")
    place = os.path.join(os.environ["SM_OUTPUT_DATA_DIR"], "trcomp")
    os.makedirs(place, exist_ok=True)
    with open(os.path.join(place, "rank-0.json"), "w") as file:
        json.dump({"rank": 0, "steps": 3}, file)
"""


def test_a_job_from_words_to_results(
    sagemaker: SageMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    s3 = sagemaker.client("s3")
    s3.put_object(Bucket=sagemaker.bucket, Key="data/train/a.txt", Body=b"hello")
    job = estimator(
        tmp_path,
        sagemaker,
        WHOLE,
        hyperparameters={"lr": 0.1, "name": "a b"},
        environment={"MINE": "yes"},
    )
    job.fit({"train": f"s3://{sagemaker.bucket}/data/train"}, job_name="whole")
    shown = capsys.readouterr().out
    for line in (
        "[rank 0] arguments ['--lr', '0.1', '--name', 'a b']",
        "[rank 0] channels ['train', 'code']",
        "[rank 0] data hello",
        "[rank 0] variable yes whole us-east-1",
        "[rank 0] home False",
        "Completed",
        "sagemaker://whole",
    ):
        assert shown.count(line) == 1, line
    states = [line.split("  ")[-1] for line in re.findall(r"^ +[0-9.]+ s .*", shown, re.MULTILINE)]
    assert states[-1] == "Completed"
    assert job.model_data == f"s3://{sagemaker.bucket}/whole/output/model.tar.gz"
    assert job_of(job).report()["totals"] == {"num_ranks": 1, "steps": 3, "fallbacks": {}}
    # Another process, another day: the handle is enough.
    attached = Job.attach("sagemaker://whole")
    assert attached.status() == "Completed"
    assert "[rank 0] data hello" in list(attached.logs())
    assert attached.describe()["instance_type"] == "ml.m5.large"


def test_unchanged_code_is_uploaded_once(sagemaker: SageMaker, tmp_path: Path) -> None:
    job = estimator(tmp_path, sagemaker, "print('first')")
    job.fit(logs=False)
    sagemaker.calls.clear()
    job.fit(logs=False)
    before = sagemaker.calls[: sagemaker.calls.index("CreateTrainingJob") + 1]
    assert before == ["S3.HEAD", "S3.HEAD", "CreateTrainingJob"]
    (tmp_path / "code" / "train.py").write_text("print('second')\n")
    sagemaker.calls.clear()
    job.fit(logs=False)
    before = sagemaker.calls[: sagemaker.calls.index("CreateTrainingJob") + 1]
    assert before == ["S3.HEAD", "S3.HEAD", "S3.PUT", "CreateTrainingJob"]
    assert "[rank 0] second" in list(job_of(job).logs())


def test_a_submission_makes_few_calls_beside_the_upload(
    sagemaker: SageMaker, tmp_path: Path
) -> None:
    estimator(tmp_path, sagemaker, "print()").fit(wait=False)
    calls = sagemaker.calls[1:]  # the first made the bucket
    calls = calls[: calls.index("CreateTrainingJob") + 1]
    assert [call for call in calls if call != "S3.PUT"] == [
        "S3.HEAD",
        "S3.HEAD",
        "CreateTrainingJob",
    ]


def test_code_that_changes_after_it_was_planned_is_not_sent(
    sagemaker: SageMaker, tmp_path: Path
) -> None:
    plan = estimator(tmp_path, sagemaker, "print('first')").plan(job_name="changed")
    for text in ("print('other')\n", "print('longer than it was')\n", "short"):
        (tmp_path / "code" / "train.py").write_text(text)
        with pytest.raises(SpecError, match="source_dir"):
            backend.submit(plan)
    assert "S3.PUT" not in sagemaker.calls[2:]
    assert sagemaker.control.jobs == {}


def test_a_key_encrypts_code_and_results(sagemaker: SageMaker, tmp_path: Path) -> None:
    key = "arn:aws:kms:us-east-1:123456789012:key/mine"
    job = estimator(tmp_path, sagemaker, WRITER, output_kms_key=key)
    job.fit(logs=False)
    s3 = sagemaker.client("s3")
    keys = [item["Key"] for item in s3.list_objects_v2(Bucket=sagemaker.bucket)["Contents"]]
    names = sorted(name.rpartition("/")[2] for name in keys)
    assert names == ["model.tar.gz", "output.tar.gz", "sourcedir.tar.gz"]
    for name in keys:
        assert s3.head_object(Bucket=sagemaker.bucket, Key=name)["SSEKMSKeyId"] == key


def test_lines_of_all_hosts_come_once_in_order_and_named(
    sagemaker: SageMaker, tmp_path: Path
) -> None:
    job = estimator(
        tmp_path,
        sagemaker,
        """
        import time
        for number in range(300):
            print("line", number, flush=True)
            if number % 50 == 0:
                time.sleep(0.1)
        print("without an end", end="")
        """,
        instance_count=2,
    )
    job.fit(wait=False)
    # Read while they come.
    lines = list(job_of(job).logs(follow=True))
    for rank, host in enumerate(["algo-1", "algo-2"]):
        prefix = f"[{host} rank {rank}] "
        own = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
        assert own == [*(f"line {number}" for number in range(300)), "without an end"]
    assert job_of(job).record().hosts == ("algo-1", "algo-2")
    assert sorted(job_of(job).logs()) == sorted(lines)


def test_a_failure_is_the_scripts_own(sagemaker: SageMaker, tmp_path: Path) -> None:
    job = estimator(
        tmp_path,
        sagemaker,
        """
        import os, time
        print("before")
        if os.environ["RANK"] == "1":
            raise ValueError("bad luck")
        time.sleep(600)
        """,
        instance_count=2,
    )
    with pytest.raises(JobFailedError) as caught:
        job.fit(logs=False)
    error = caught.value
    assert (error.exit_code, error.rank, error.host) == (1, 1, "algo-2")
    assert "ValueError: bad luck" in str(error)
    assert "raise ValueError" in error.traceback
    assert "before" in error.last_lines
    assert "console.aws.amazon.com" in str(error)
    answer = sagemaker.client("sagemaker").describe_training_job(TrainingJobName=job_of(job).name)
    assert answer["FailureReason"].startswith("AlgorithmError: ValueError: bad luck")


def test_a_failure_that_sagemaker_cuts_is_read_to_its_end_in_the_log(
    sagemaker: SageMaker, tmp_path: Path
) -> None:
    script = "\n".join(
        [f"def f{n}():\n    f{n + 1}()" for n in range(40)]
        + ["def f40():\n    raise ValueError('at the end')", "f0()"]
    )
    with pytest.raises(JobFailedError) as caught:
        estimator(tmp_path, sagemaker, script).fit(logs=False)
    error = caught.value
    assert (error.exit_code, error.rank) == (1, 0)
    assert error.traceback.startswith("Traceback (most recent call last):")
    assert "SageMaker keeps no more of it" in error.traceback
    assert "raise ValueError('at the end')" in error.traceback


def test_stop_lets_the_script_end_and_keeps_what_it_left(
    sagemaker: SageMaker, tmp_path: Path
) -> None:
    job = estimator(
        tmp_path,
        sagemaker,
        """
        import os, signal, sys, time
        def ended(*args):
            with open(os.path.join(os.environ["SM_MODEL_DIR"], "last"), "w") as file:
                file.write("x")
            print("saved", flush=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, ended)
        print("ready", flush=True)
        time.sleep(600)
        """,
    )
    job.fit(wait=False)
    lines = job_of(job).logs(follow=True)
    assert any(line.endswith("ready") for line in lines)
    job_of(job).stop()
    with pytest.raises(JobStoppedError):
        job_of(job).wait(60)
    assert "[rank 0] saved" in list(job_of(job).logs())
    assert job.model_data is not None
    states = [step.status for step in job_of(job).record().transitions]
    assert states[-3:] == [JobStatus.STOPPING, JobStatus.UPLOADING, JobStatus.STOPPED]
    job_of(job).stop()  # nothing happens to a job that has ended


def test_a_job_is_stopped_at_max_run(sagemaker: SageMaker, tmp_path: Path) -> None:
    script = "import time; time.sleep(600)"
    job = estimator(tmp_path, sagemaker, script, max_run=1)
    with pytest.raises(JobLimitError, match="stopped at its max_run"):
        job.fit(logs=False)


def test_checkpoints_are_found_again_by_the_next_job(sagemaker: SageMaker, tmp_path: Path) -> None:
    script = """
        import os, pathlib
        place = pathlib.Path(os.environ["SM_MODEL_DIR"]).parent / "checkpoints" / "step"
        print("found", place.read_text() if place.exists() else "nothing")
        place.write_text("7")
    """
    uri = f"s3://{sagemaker.bucket}/checkpoints"
    job = estimator(tmp_path, sagemaker, script, checkpoint_s3_uri=uri)
    job.fit(logs=False)
    assert "[rank 0] found nothing" in list(job_of(job).logs())
    job.fit(logs=False)
    assert "[rank 0] found 7" in list(job_of(job).logs())


def test_the_command_line_finds_the_job_by_its_handle(
    sagemaker: SageMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n" + textwrap.dedent(WRITER))
    words = ["--instance-type", "ml.m5.large", "--role", sagemaker.role, "--image-uri", "image"]
    words += ["--no-compiler", "--job-name", "typed", "--set", "max_run=60"]
    assert main(["run", str(tmp_path / "train.py"), *words, "--detach"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "sagemaker://typed"
    assert main(["logs", "--follow", "sagemaker://typed"]) == 0
    assert "[rank 0] hello" in capsys.readouterr().out
    assert main(["status", "sagemaker://typed"]) == 0
    shown = capsys.readouterr().out
    assert "Downloading: Downloading input data" in shown
    assert "Completed" in shown
    assert main(["list", "--backend", "sagemaker", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"handle": "sagemaker://typed", "status": "Completed"}
    ]
    assert main(["report", "sagemaker://typed"]) == 0
    capsys.readouterr()
    assert main(["logs", "sagemaker://typed", "--json"]) == 0
    assert "[rank 0] hello" in map(json.loads, capsys.readouterr().out.splitlines())
    place = tmp_path / "results"
    assert main(["download", "sagemaker://typed", "--to", str(place), "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert files == [str(place / name) for name in ("model.tar.gz", "output.tar.gz")]
    with tarfile.open(place / "model.tar.gz") as archive:
        assert archive.getnames() == ["model.txt"]
    again = tmp_path / "again"
    assert main(["download", "sagemaker://typed", "--only", "model", "--to", str(again)]) == 0
    assert [path.name for path in again.iterdir()] == ["model.tar.gz"]
    capsys.readouterr()
    assert main(["stop", "sagemaker://typed", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "Completed"
    assert main(["remove", "sagemaker://typed"]) == 0
    assert main(["status", "sagemaker://typed"]) == 64
    assert "There is no job sagemaker://typed in region us-east-1" in capsys.readouterr().err


def test_run_with_json_prints_the_job_alone_on_standard_output(
    sagemaker: SageMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("print('hello')\nraise SystemExit(3)\n")
    words = ["--instance-type", "ml.m5.large", "--role", sagemaker.role, "--image-uri", "image"]
    assert main(["run", str(tmp_path / "train.py"), *words, "--no-compiler", "--json"]) == 3
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert (found["status"], found["failure"]["exit_code"]) == ("Failed", 3)
    assert "[rank 0] hello" in shown.err


def test_a_busy_service_is_asked_again(sagemaker: SageMaker, tmp_path: Path) -> None:
    job = estimator(tmp_path, sagemaker, "print('hello')")
    sagemaker.refuse("DescribeTrainingJob", "ThrottlingException", "Rate exceeded", times=2)
    sagemaker.refuse("GetLogEvents", "ThrottlingException", "Rate exceeded", times=2)
    job.fit()
    assert [line for line in job_of(job).logs() if line.endswith("hello")] == ["[rank 0] hello"]


@pytest.mark.parametrize(
    ("operation", "code", "message", "told"),
    [
        (
            "CreateTrainingJob",
            "AccessDeniedException",
            "User: arn:aws:iam::123456789012:user/me is not authorized to perform: "
            "sagemaker:CreateTrainingJob on resource: arn:aws:sagemaker:x because no policy",
            "Allow arn:aws:iam::123456789012:user/me the action sagemaker:CreateTrainingJob on",
        ),
        ("S3.PUT", "AccessDenied", "Access Denied", "the action s3:PutObject"),
        ("CreateTrainingJob", "ExpiredTokenException", "expired", "Renew the credentials"),
        (
            "CreateTrainingJob",
            "ResourceLimitExceeded",
            "The limit is 0 Instances",
            "Service Quotas",
        ),
        ("CreateTrainingJob", "UnrecognizedClientException", "The token is invalid", "AWS_PROFILE"),
    ],
)
def test_refusals_of_a_submission_say_what_to_do(
    operation: str, code: str, message: str, told: str, sagemaker: SageMaker, tmp_path: Path
) -> None:
    sagemaker.refuse(operation, code, message)
    with pytest.raises(BackendUnavailableError, match=re.escape(told)):
        estimator(tmp_path, sagemaker, "print()").fit()
    assert sagemaker.control.jobs == {}


def test_credentials_that_expire_while_a_job_is_watched_say_how_to_go_on(
    sagemaker: SageMaker, tmp_path: Path
) -> None:
    job = estimator(tmp_path, sagemaker, "print('hello')")
    job.fit(wait=False, job_name="watched")
    sagemaker.refuse("DescribeTrainingJob", "ExpiredTokenException", "expired", times=4)
    with pytest.raises(BackendUnavailableError, match="trcomp logs -f sagemaker://watched"):
        job_of(job).wait()
    assert job_of(job).wait(60) == "Completed"


def test_a_name_is_taken_once(sagemaker: SageMaker, tmp_path: Path) -> None:
    job = estimator(tmp_path, sagemaker, "print('hello')")
    job.fit(job_name="taken", logs=False)
    with pytest.raises(SpecError, match="job_name: got 'taken'; a training job of that name"):
        job.fit(job_name="taken")


def test_a_missing_bucket_is_told_with_the_command_that_makes_it(
    sagemaker: SageMaker, tmp_path: Path
) -> None:
    job = estimator(tmp_path, sagemaker, "print()", output_path="s3://no-such-bucket/x")
    with pytest.raises(BackendUnavailableError, match="aws s3 mb s3://no-such-bucket"):
        job.fit()


def test_a_bucket_in_another_region_is_told(sagemaker: SageMaker, tmp_path: Path) -> None:
    where: Any = {"LocationConstraint": "eu-west-1"}
    s3 = sagemaker.client("s3")
    s3.create_bucket(Bucket="elsewhere", CreateBucketConfiguration=where)
    job = estimator(tmp_path, sagemaker, "print()", output_path="s3://elsewhere/x")
    with pytest.raises(BackendUnavailableError, match="is in eu-west-1, the job in us-east-1"):
        job.fit()


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, "no AWS credentials"),
        ({"AWS_DEFAULT_REGION": None}, "no AWS region is set"),
        ({"AWS_PROFILE": "nobody"}, "nobody"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "Could not connect"),
    ],
)
def test_a_configuration_that_leads_nowhere_is_told(
    variables: dict[str, str | None],
    told: str,
    sagemaker: SageMaker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name, value in variables.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    with pytest.raises(BackendUnavailableError, match=told):
        estimator(tmp_path, sagemaker, "print()").fit()


def test_no_capacity_is_an_error_of_its_own(sagemaker: SageMaker, tmp_path: Path) -> None:
    sagemaker.no_capacity.add("ml.m5.large")
    with pytest.raises(JobCapacityError, match="Unable to provision"):
        estimator(tmp_path, sagemaker, "print()").fit(logs=False)


def test_data_that_is_not_there_fails_the_job_with_sagemakers_words(
    sagemaker: SageMaker, tmp_path: Path
) -> None:
    job = estimator(tmp_path, sagemaker, "print()")
    with pytest.raises(JobFailedError, match="ClientError: Data download failed"):
        job.fit(f"s3://{sagemaker.bucket}/nothing")


def test_what_the_service_refuses_is_refused_by_the_stand_in(sagemaker: SageMaker) -> None:
    client = sagemaker.client("sagemaker")
    request: dict[str, Any] = {
        "TrainingJobName": "not_a_name",
        "RoleArn": "arn:aws:iam::123456789012:role/R",
        "OutputDataConfig": {"S3OutputPath": "s3://b"},
        "StoppingCondition": {"MaxRuntimeInSeconds": 1},
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1},
        "EnableManagedSpotTraining": True,
    }
    with pytest.raises(client.exceptions.ClientError, match="3 validation errors"):
        client.create_training_job(**request)


def test_a_job_that_is_not_there(sagemaker: SageMaker) -> None:
    with pytest.raises(JobNotFoundError, match="region us-east-1"):
        Job.attach("sagemaker://nobody")


@pytest.mark.slow
def test_ctrl_c_stops_the_job(sagemaker: SageMaker, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time; print('ready', flush=True); time.sleep(600)\n")
    words = ["--instance-type", "ml.m5.large", "--role", sagemaker.role, "--image-uri", "image"]
    command = [sys.executable, "-m", "trcomp", "run", str(tmp_path / "train.py"), *words]
    process = subprocess.Popen(
        [*command, "--no-compiler", "--job-name", "typed"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=dict(os.environ),
    )
    assert process.stdout is not None
    with process.stdout as lines:
        assert any("ready" in line for line in lines)
        process.send_signal(signal.SIGINT)
        rest = "".join(lines)
    assert process.wait(60) == 130
    assert "sagemaker://typed: Stopped" in rest
    assert Job("sagemaker://typed").status() == "Stopped"
