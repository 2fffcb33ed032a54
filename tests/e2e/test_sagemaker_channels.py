"""The stand-in's channels beside plain files: pipes, manifests, what is wrong with them."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.e2e.test_sagemaker import estimator, job_of
from trcomp import JobFailedError
from trcomp.inputs import TrainingInput
from trcomp.testing import SageMaker

pytestmark = pytest.mark.e2e

READER = """
    import json, os, pathlib
    data = pathlib.Path(os.environ["SM_INPUT_DIR"], "data")
    for channel in json.loads(os.environ["SM_CHANNELS"]):
        if (data / channel).is_dir():
            files = sorted(p for p in (data / channel).rglob("*") if p.is_file())
            print("FOUND", json.dumps([channel, [str(p.relative_to(data)) for p in files]]))
            continue
        for epoch in range(2):
            with open(data / f"{channel}_{epoch}", "rb") as stream:
                print("FOUND", json.dumps([channel, stream.read().decode("latin-1")]))
"""


def found(lines: list[str]) -> dict[str, list[Any]]:
    """What the reader printed, by channel, epoch by epoch."""
    values: dict[str, list[Any]] = {}
    for line in lines:
        if "FOUND " in line:
            channel, value = json.loads(line.split("FOUND ")[1])
            values.setdefault(channel, []).append(value)
    return values


def record(content: bytes) -> bytes:
    return struct.pack("<II", 0xCED7230A, len(content)) + content + b"\0" * (-len(content) % 4)


def test_pipes_and_manifests(sagemaker: SageMaker, tmp_path: Path) -> None:
    base = f"s3://{sagemaker.bucket}"
    for key, body in {
        "many/0": b"zero ",
        "many/1": b"one ",
        "many/2": b"two ",
        "packed/a": gzip.compress(b"unpacked"),
        "deep/data/x.txt": b"x",
        "deep/data/not": b"not",
        "list.json": json.dumps([{"prefix": f"{base}/deep/"}, "data/x.txt"]).encode(),
        "lines.json": b"\n".join(
            json.dumps(line).encode()
            for line in (
                {"other": 1, "image-ref": f"{base}/many/0", "cat": 1},
                {"cat": "no", "image-ref": f"{base}/many/2"},
            )
        ),
    }.items():
        sagemaker.client("s3").put_object(Bucket=sagemaker.bucket, Key=key, Body=body)
    job = estimator(tmp_path, sagemaker, READER, input_mode="Pipe")
    job.fit(
        {
            "plain": f"{base}/many",
            "shuffled": TrainingInput(f"{base}/many", shuffle_seed=4),
            "packed": TrainingInput(f"{base}/packed", compression="Gzip"),
            "listed": TrainingInput(
                f"{base}/list.json", s3_data_type="ManifestFile", input_mode="File"
            ),
            "labelled": TrainingInput(
                f"{base}/lines.json",
                s3_data_type="AugmentedManifestFile",
                attribute_names=["image-ref", "cat"],
                record_wrapping="RecordIO",
            ),
        },
        logs=False,
    )
    values = found(list(job_of(job).logs()))
    assert values["plain"] == ["zero one two "] * 2
    assert [sorted(text.split()) for text in values["shuffled"]] == [["one", "two", "zero"]] * 2
    assert values["shuffled"][0] != values["shuffled"][1]
    assert values["packed"] == ["unpacked"] * 2
    assert values["listed"] == [["listed/data/x.txt"]]
    labelled = b"".join(map(record, (b"zero ", b"1", b"two ", b"no")))
    assert values["labelled"] == [labelled.decode("latin-1")] * 2


GROUPS: dict[str, Any] = {
    "instance_type": None,
    "instance_groups": [
        {"InstanceGroupName": "data", "InstanceType": "ml.c5.large", "InstanceCount": 1},
        {"InstanceGroupName": "ranks", "InstanceType": "ml.m5.large", "InstanceCount": 2},
    ],
    "distribution": {"torch_distributed": {"enabled": True}, "instance_groups": ["ranks"]},
}
OF_GROUP = """
    import json, os, pathlib
    place = pathlib.Path(os.environ["SM_INPUT_DIR"], "data")
    files = [p for p in place.rglob("*") if p.is_file() and p.parent.name != "code"]
    content = sorted(str(p.relative_to(place)) for p in files)
    content += [f"{pipe.name}: {pipe.read_text()}" for pipe in place.glob("*_0")]
    named = sorted(name for name in os.environ if name.startswith("SM_CHANNEL_"))
    named = " ".join(name[11:] for name in named if name != "SM_CHANNEL_CODE")
    print("FOUND", json.dumps([os.environ["SM_CURRENT_HOST"], [named, *content]]))
"""


def test_a_channel_goes_to_the_hosts_of_its_groups(sagemaker: SageMaker, tmp_path: Path) -> None:
    base = f"s3://{sagemaker.bucket}"
    for key in ("all/x", "parts/0", "parts/1", "parts/2", "raw/r"):
        sagemaker.client("s3").put_object(Bucket=sagemaker.bucket, Key=key, Body=key.encode())
    job = estimator(tmp_path, sagemaker, OF_GROUP, **GROUPS)
    parts = TrainingInput(f"{base}/parts", distribution="ShardedByS3Key", instance_groups=["ranks"])
    raw = TrainingInput(f"{base}/raw", instance_groups=["data"], input_mode="Pipe")
    everywhere = TrainingInput(f"{base}/all", instance_groups=["data", "ranks"])
    job.fit({"all": everywhere, "parts": parts, "raw": raw, "too": f"{base}/all"}, logs=False)
    assert found(list(job_of(job).logs())) == {
        "algo-1": [["ALL RAW TOO", "all/x", "too/x", "raw_0: raw/r"]],
        # A channel that is shared is shared among those that get it.
        "algo-2": [["ALL PARTS TOO", "all/x", "parts/0", "parts/2", "too/x"]],
        "algo-3": [["ALL PARTS TOO", "all/x", "parts/1", "too/x"]],
    }


def test_a_channel_of_groups_that_are_not_there_is_refused(
    sagemaker: SageMaker, tmp_path: Path
) -> None:
    job = estimator(tmp_path, sagemaker, "print('never')", **GROUPS)
    train = TrainingInput(f"s3://{sagemaker.bucket}/all", instance_groups=["ranks"])
    request = job.plan({"train": train}, job_name="lost").to_dict()["request"]
    source = request["InputDataConfig"][0]["DataSource"]["S3DataSource"]
    source["InstanceGroupNames"] = ["rank"]
    with pytest.raises(ClientError, match=r"train: no InstanceGroups are called \['rank'\]"):
        sagemaker.client("sagemaker").create_training_job(**request)


def test_who_reads_half_an_epoch_goes_on_with_the_next(
    sagemaker: SageMaker, tmp_path: Path
) -> None:
    script = """
        import os
        for epoch in range(3):
            with open(f"{os.environ['SM_INPUT_DIR']}/data/train_{epoch}", "rb") as stream:
                print("read", stream.read(4))
    """
    large = b"head" + bytes(1_000_000)
    sagemaker.client("s3").put_object(Bucket=sagemaker.bucket, Key="large", Body=large)
    job = estimator(tmp_path, sagemaker, script)
    train = TrainingInput(f"s3://{sagemaker.bucket}/large", input_mode="Pipe")
    job.fit({"train": train}, logs=False)
    assert list(job_of(job).logs()).count("[rank 0] read b'head'") == 3


def test_wrong_manifests(sagemaker: SageMaker, tmp_path: Path) -> None:
    uri = f"s3://{sagemaker.bucket}/wrong.json"
    job = estimator(tmp_path, sagemaker, "print('never')")
    with pytest.raises(JobFailedError, match="NoSuchKey"):
        job.fit({"train": TrainingInput(uri, s3_data_type="ManifestFile")}, logs=False)
    sagemaker.client("s3").put_object(Bucket=sagemaker.bucket, Key="wrong.json", Body=b"{}")
    with pytest.raises(JobFailedError, match=r"the manifest s3://.*wrong\.json"):
        job.fit({"train": TrainingInput(uri, s3_data_type="ManifestFile")}, logs=False)
    kind = "AugmentedManifestFile"
    piped = TrainingInput(uri, s3_data_type=kind, attribute_names=["a"], input_mode="Pipe")
    request = job.plan({"train": piped}, job_name="as-files").to_dict()["request"]
    request["InputDataConfig"][0]["InputMode"] = "File"
    with pytest.raises(ClientError, match="InputMode is Pipe"):
        sagemaker.client("sagemaker").create_training_job(**request)
