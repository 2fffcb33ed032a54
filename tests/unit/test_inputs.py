"""Channels: every way to say one, and the form of it that SageMaker gets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trcomp import Estimator, JobSpec, SpecError
from trcomp.inputs import FileSystemInput, TrainingInput, to_channel

WORDS: dict[str, Any] = {"job_name": "a-job", "entry_point": "train.py"}
FILE_SYSTEM = "fs-0123456789abcdef0"
DATASET = "arn:aws:sagemaker:us-east-1:123456789012:hub-content/hub/DataSet/mine/1.0.0"


def channel(given: Any) -> dict[str, Any]:
    """The form of one channel, which JSON keeps."""
    spec = JobSpec.of(**WORDS, inputs={"train": given})
    assert JobSpec.from_json(spec.to_json()) == spec
    form = to_channel(spec.inputs[0])
    assert form.pop("ChannelName") == "train"
    return form


def mounted(kind: str, directory: str, mode: str = "ro") -> dict[str, Any]:
    source = {"FileSystemId": FILE_SYSTEM, "FileSystemType": kind, "DirectoryPath": directory}
    return {"DataSource": {"FileSystemDataSource": source | {"FileSystemAccessMode": mode}}}


class Config:
    """Shaped as SageMaker's SDK v2 shapes its inputs."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config


@pytest.mark.parametrize(
    ("given", "form"),
    [
        (FileSystemInput(FILE_SYSTEM, "EFS", "/data"), mounted("EFS", "/data")),
        (
            FileSystemInput(FILE_SYSTEM, "FSxLustre", "/mount/data", "rw", "text/csv"),
            mounted("FSxLustre", "/mount/data", "rw") | {"ContentType": "text/csv"},
        ),
        (f"efs://{FILE_SYSTEM}/data", mounted("EFS", "/data")),
        (f"fsxlustre://{FILE_SYSTEM}/m/data", mounted("FSxLustre", "/m/data")),
        (Config(mounted("FSxLustre", "/m/data", "rw")), mounted("FSxLustre", "/m/data", "rw")),
        (DATASET, {"DataSource": {"DatasetSource": {"DatasetArn": DATASET}}}),
        (
            Config({"DataSource": {"DatasetSource": {"DatasetArn": DATASET}}}),
            {"DataSource": {"DatasetSource": {"DatasetArn": DATASET}}},
        ),
    ],
)
def test_data_that_is_not_in_s3(given: Any, form: dict[str, Any]) -> None:
    assert channel(given) == form


def test_a_training_input_has_every_word_of_the_channel() -> None:
    given = TrainingInput(
        "s3://bucket/train",
        distribution="ShardedByS3Key",
        compression="Gzip",
        content_type="text/csv",
        record_wrapping="RecordIO",
        s3_data_type="AugmentedManifestFile",
        instance_groups=["gpus"],
        input_mode="Pipe",
        attribute_names=["source", "label"],
        shuffle_seed=7,
        accept_eula=True,
        hub_content_arn="arn:hub",
    )
    form = {
        "ContentType": "text/csv",
        "InputMode": "Pipe",
        "CompressionType": "Gzip",
        "RecordWrapperType": "RecordIO",
        "ShuffleConfig": {"Seed": 7},
        "DataSource": {
            "S3DataSource": {
                "S3Uri": "s3://bucket/train",
                "S3DataType": "AugmentedManifestFile",
                "S3DataDistributionType": "ShardedByS3Key",
                "AttributeNames": ["source", "label"],
                "InstanceGroupNames": ["gpus"],
                "ModelAccessConfig": {"AcceptEula": True},
                "HubAccessConfig": {"HubContentArn": "arn:hub"},
            }
        },
    }
    assert channel(given) == form
    assert channel(Config(form)) == form


@pytest.mark.parametrize(
    "place",
    ["efs://nfs/data", "efs://fs-01", FileSystemInput("fs-x", "EFS", "/d"), "http://x/y"],
)
def test_a_place_that_is_none_is_refused(place: Any) -> None:
    with pytest.raises(SpecError, match=r"inputs\['train'\]"):
        channel(place)


def test_an_unknown_kind_of_file_system_is_refused() -> None:
    with pytest.raises(SpecError, match="inputs"):
        channel(FileSystemInput(FILE_SYSTEM, "NFS", "/data"))


def test_a_local_job_has_no_file_systems(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    with pytest.raises(SpecError, match="a local job takes a path"):
        Estimator("train.py", tmp_path).plan({"train": f"efs://{FILE_SYSTEM}/data"})


def test_a_list_of_channels_that_name_themselves() -> None:
    given = [
        SimpleNamespace(channel_name="a", data_source="s3://bucket/a", content_type=None),
        SimpleNamespace(channel_name="b", data_source=f"efs://{FILE_SYSTEM}/b"),
        SimpleNamespace(channel_name="c", data_source="here"),
    ]
    spec = JobSpec.of(**WORDS, inputs=given)
    assert [item.channel for item in spec.inputs] == ["a", "b", "c"]
    assert spec.inputs[0].uri == "s3://bucket/a"
    assert spec.inputs[1].uri == f"efs://{FILE_SYSTEM}/b"
    assert spec.inputs[2].path is not None
