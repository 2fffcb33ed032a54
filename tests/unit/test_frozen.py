"""The catalogue of the Training Compiler's frozen images, and jobs in them on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trcomp import JobSpec
from trcomp.backends import docker_plan
from trcomp.images import frozen


@pytest.mark.parametrize(
    ("versions", "tag"),
    [
        ({"framework_version": "1.13.1", "py_version": "py39"}, "1.13.1-gpu-py39"),
        ({"framework_version": "1.12"}, "1.12.0-gpu-py38"),
        (
            {"pytorch_version": "1.11", "transformers_version": "4.21"},
            "1.11.0-transformers4.21.1-gpu-py38-cu113-ubuntu20.04",
        ),
        (
            {"pytorch_version": "1.9.0", "transformers_version": "4.11.0"},
            "1.9.0-transformers4.11.0-gpu-py38-cu111-ubuntu20.04",
        ),
    ],
)
def test_versions_choose_an_image(versions: dict[str, str], tag: str) -> None:
    image = frozen.of_versions(versions)
    assert image is not None
    assert image.tag == tag
    uri = image.uri("us-east-1")
    assert uri == f"763104351884.dkr.ecr.us-east-1.amazonaws.com/{image.repository}:{tag}"
    assert frozen.of_uri(uri) is image


@pytest.mark.parametrize(
    "versions",
    [
        {},
        {"framework_version": "1.1"},
        {"framework_version": "2.0.1"},
        {"framework_version": "1.11.0"},
        {"pytorch_version": "1.11.0"},
        {"pytorch_version": "1.13.1", "transformers_version": "4.21.1"},
        {"framework_version": "1.13.1", "py_version": "py38"},
    ],
)
def test_versions_that_no_image_has_choose_none(versions: dict[str, str]) -> None:
    assert frozen.of_versions(versions) is None


@pytest.mark.parametrize("uri", [None, "", "image", "x/pytorch-training:1.13.1-gpu-py39"])
def test_other_images_are_none_of_these(uri: Any) -> None:
    assert frozen.of_uri(uri) is None


def test_the_image_of_a_published_tag_is_known() -> None:
    # AWS publishes it under a longer tag too.
    uri = (
        "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-trcomp-training:"
        "1.13.1-gpu-py39-cu117-ubuntu20.04-sagemaker"
    )
    image = frozen.of_uri(uri)
    assert image is not None
    assert image.spawns


@pytest.mark.parametrize("region", ["cn-north-1", "us-gov-west-1", "nowhere"])
def test_other_partitions_have_none(region: str) -> None:
    assert [image.uri(region) for image in frozen.IMAGES] == [None] * len(frozen.IMAGES)


def test_a_container_on_this_machine_gets_what_the_image_needs(tmp_path: Path) -> None:
    words: dict[str, Any] = {"job_name": "job", "instance_type": "local_gpu", "gpus": ["0", "2"]}
    words |= {"entry_point": "train.py", "source_dir": tmp_path, "environment": {"MINE": "1"}}
    (tmp_path / "train.py").write_text("")
    uri = frozen.IMAGES[0].uri("us-east-1")
    (host,) = docker_plan.plan(JobSpec.of(image_uri=uri, **words)).hosts
    wanted = {"MINE": "1", "GPU_NUM_DEVICES": "2", "XRT_HOST_ORDINAL": "0"}
    assert wanted.items() <= host.environment.items()
    (host,) = docker_plan.plan(JobSpec.of(image_uri="mine", **words)).hosts
    assert "XRT_HOST_ORDINAL" not in host.environment
    refused = docker_plan.problems(JobSpec.of(image_uri=uri, arguments=["--fp16"], **words))
    assert [problem.field for problem in refused] == ["arguments"]
