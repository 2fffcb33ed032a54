"""What jobs leak, and what they may do: planted secrets, IAM's actions, encryption, archives."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from botocore.client import BaseClient

from trcomp import Estimator, Job, JobStoppedError, SpecError, TrainingCompilerConfig, iam
from trcomp.cli import main
from trcomp.errors import BackendUnavailableError
from trcomp.testing import SageMaker

pytestmark = pytest.mark.e2e

PLAIN = TrainingCompilerConfig(enabled=False)
SECRET = "pl4nted-s3cret"
SCRIPT = """
import glob, os
own = os.environ.get("OWN_TOKEN", "")
print("has", len(own))
seen = 0
for path in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        text = open(path, "rb").read().decode(errors="replace")
    except OSError:
        continue
    seen += 1
    if "trcomp" in text and "pl4nted" in text:
        print("LEAK", path, text)
print("looked at", seen > 1)
with open(os.path.join(os.environ["SM_MODEL_DIR"], "model.txt"), "w") as file:
    file.write("weights")
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script among secrets: in files beside it, in the launcher's environment, in its home."""
    monkeypatch.setenv("TRCOMP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRET)
    files = {"train.py": SCRIPT, ".env": f"KEY={SECRET}\n", ".git/config": f"url = {SECRET}\n"}
    files |= {
        "venv/pyvenv.cfg": "",
        "venv/token": SECRET,
        "keys/id": SECRET,
        ".trcompignore": "keys/",
    }
    for name, text in files.items():
        path = tmp_path / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "code"


def planted_in(root: Path) -> list[str]:
    """Files under a directory that hold the secret, compressed or not."""
    found = []
    for path in root.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            data += gzip.decompress(data) if data[:2] == b"\x1f\x8b" else b""
            if SECRET.encode() in data:
                found.append(str(path))
    return found


def objects(sagemaker: SageMaker) -> Iterator[bytes]:
    s3 = sagemaker.client("s3")
    for item in s3.list_objects_v2(Bucket=sagemaker.bucket)["Contents"]:
        data = s3.get_object(Bucket=sagemaker.bucket, Key=item["Key"])["Body"].read()
        yield data + (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else b"")


@pytest.mark.parametrize("as_word", [False, True], ids=["around", "given"])
def test_no_secret_reaches_the_archive_the_log_the_record_or_an_argument(
    as_word: bool, sagemaker: SageMaker, code: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words: dict[str, Any] = {"environment": {"OWN_TOKEN": SECRET}} if as_word else {}
    estimator = Estimator(
        "train.py",
        code,
        role=sagemaker.role,
        image_uri="image",
        instance_type="ml.m5.large",
        compiler_config=PLAIN,
        **words,
    )
    plan = estimator.plan(job_name="job")
    assert SECRET not in plan.to_text() + plan.to_json() + repr(plan)
    estimator.fit(job_name="job")
    job = Job("sagemaker://job")
    lines = list(job.logs())
    assert f"[rank 0] has {len(SECRET) if as_word else 0}" in lines
    assert "[rank 0] looked at True" in lines
    shown = "\n".join([*lines, *capfd.readouterr(), json.dumps(job.describe())])
    assert SECRET not in shown
    assert all(SECRET.encode() not in data for data in objects(sagemaker))
    request = json.dumps(sagemaker.control.jobs["job"].description(), default=str)
    # What is given as a variable of the job is one: SageMaker keeps it with the request.
    assert (SECRET in request) == as_word


@pytest.mark.parametrize("as_word", [False, True], ids=["around", "given"])
def test_no_secret_reaches_the_files_of_a_local_job(
    as_word: bool, code: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words: dict[str, Any] = {"environment": {"OWN_TOKEN": SECRET}} if as_word else {}
    estimator = Estimator("train.py", code, compiler_config=PLAIN, **words)
    estimator.fit(job_name="local")
    lines = list(Job("local").logs())
    assert f"[rank 0] has {len(SECRET) if as_word else 0}" in lines
    assert "LEAK" not in "\n".join(lines)
    assert SECRET not in "".join(capfd.readouterr())
    assert planted_in(code.parent / "home") == []


def test_a_secret_of_a_repository_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    config = {"repo": f"https://me:{SECRET}@example.org/x.git", "password": SECRET}
    with pytest.raises(SpecError) as caught:
        Estimator("train.py", git_config=config)
    words = ["plan", "train.py", "--set", f"git_config={json.dumps(config)}"]
    assert main(words) == 64
    assert SECRET not in str(caught.value) + "".join(capfd.readouterr())


def test_iam_allows_each_call_that_is_made_and_nothing_else(
    sagemaker: SageMaker, tmp_path: Path
) -> None:
    """Everything that can be done with jobs, and the actions that it took."""
    made: set[str] = set()
    call, here = BaseClient._make_api_call, threading.current_thread()

    def noted(client: Any, operation: str, words: Any) -> Any:
        # The stand-in itself calls S3 and CloudWatch, in threads of its own.
        if threading.current_thread() is here:
            made.add(operation)
        return call(client, operation, words)

    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    (tmp_path / "code" / "wait.py").write_text("import time\ntime.sleep(600)\n")
    words: dict[str, Any] = {"role": sagemaker.role, "image_uri": "image", "tags": {"a": "b"}}
    words |= {"instance_type": "ml.m5.large", "compiler_config": PLAIN}
    with mock.patch.object(BaseClient, "_make_api_call", noted):
        with pytest.raises(BackendUnavailableError, match="image is not there"):
            Estimator("train.py", tmp_path / "code", **words | {"image_uri": None}).fit()
        Estimator("train.py", tmp_path / "code", **words).fit(job_name="done")
        done = Job.attach("sagemaker://done")
        assert done.report()["ranks"] == []
        assert done.download(tmp_path / "results")
        assert Estimator.attach("done").model_data
        Estimator("wait.py", tmp_path / "code", **words).fit(wait=False, job_name="long")
        Job("sagemaker://long").stop()
        with pytest.raises(JobStoppedError):
            Job("sagemaker://long").wait(60)
        assert main(["list", "--backend", "sagemaker"]) == 0
        done.remove()
    # Streams of a log are read in threads, and by trcomp alone.
    made |= {"GetLogEvents"} & set(sagemaker.calls)
    assert made == set(iam.CALLS)
    policy = iam.caller_policy(
        iam.Scope(role=sagemaker.role, region="us-east-1", output_path=f"s3://{sagemaker.bucket}")
    )
    allowed = {action for one in policy["Statement"] for action in one["Action"]}
    beside = {action for action, _ in iam.BESIDE}
    assert allowed == {iam.CALLS[operation][0] for operation in made} | beside


def test_a_report_out_of_s3_is_a_small_file_or_none(sagemaker: SageMaker, tmp_path: Path) -> None:
    """Who may write results could leave an archive that fills the memory of whoever reads it."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print()\n")
    words: dict[str, Any] = {"role": sagemaker.role, "image_uri": "image"}
    words |= {"instance_type": "ml.m5.large", "compiler_config": PLAIN}
    Estimator("train.py", tmp_path / "code", **words).fit(job_name="job", logs=False)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        link = tarfile.TarInfo("trcomp/rank-0.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        large = tarfile.TarInfo("trcomp/rank-1.json")
        large.size = 17 * 2**20
        archive.addfile(large, io.BytesIO(bytes(large.size)))
        sound = tarfile.TarInfo("trcomp/rank-2.json")
        sound.size = len(b'{"rank": 2}')
        archive.addfile(sound, io.BytesIO(b'{"rank": 2}'))
    sagemaker.client("s3").put_object(
        Bucket=sagemaker.bucket, Key="job/output/output.tar.gz", Body=stream.getvalue()
    )
    assert Job("sagemaker://job").report()["ranks"] == [{"rank": 2}]
