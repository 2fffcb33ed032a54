"""The Training Compiler's frozen images, stood for by one that records what it was given."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.parity import driver
from tests.parity.differences import comparable
from trcomp import Estimator, TrainingCompilerConfig
from trcomp.contract import Paths
from trcomp.testing import SageMaker, host_files

URI = (
    "763104351884.dkr.ecr.us-east-1.amazonaws.com/huggingface-pytorch-trcomp-training:"
    "1.11.0-transformers4.21.1-gpu-py38-cu113-ubuntu20.04"
)
pytestmark = pytest.mark.filterwarnings("ignore:.*it is frozen")


@pytest.fixture
def recorder(engine: Any, image: str) -> Iterator[str]:
    """The stand-in, under the frozen image's own name."""
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        script = (driver.SCRIPTS / "recorder.py").read_bytes()
        for name, content in {
            "Dockerfile": f"FROM {image}\nCOPY train /usr/local/bin/train\n".encode(),
            "train": script,
        }.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
    context.seek(0)
    engine.images.build(fileobj=context, custom_context=True, tag=URI, rm=True)
    yield URI
    engine.images.remove(URI, force=True)


JOBS: dict[str, dict[str, Any]] = {
    "spawns": {
        "compiler_config": TrainingCompilerConfig(debug=True),
        "hyperparameters": {"lr": 0.1, "name": "a b"},
        "environment": {"MINE": "yes", "GPU_NUM_DEVICES": "2"},
    },
    "launched": {
        "compiler_config": TrainingCompilerConfig(),
        "distribution": {"pytorchxla": {"enabled": True}},
        "instance_count": 2,
    },
}


@pytest.mark.parametrize("name", JOBS)
def test_a_frozen_image_is_given_the_same_in_a_container_as_in_sagemaker(
    name: str,
    recorder: str,
    tmp_path: Path,
    sagemaker: SageMaker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRCOMP_HOME", str(tmp_path / "home"))
    seen = driver.in_containers(tmp_path, recorder).run(name, JOBS[name])
    assert seen.status == "Completed"
    assert seen.files[0] == "model.tar.gz: model"
    hosts = [f"algo-{number + 1}" for number in range(JOBS[name].get("instance_count", 1))]
    assert list(seen.given) == [f"{host}.json" for host in hosts]
    for host in hosts:
        its = _in_sagemaker(name, host, hosts, tmp_path, sagemaker)
        mine = comparable(seen.given[f"{host}.json"], {})
        assert mine == comparable(its, {})
    assert ("environ/XRT_WORKERS" in mine) is (name == "spawns")


def _in_sagemaker(
    name: str, host: str, hosts: list[str], place: Path, sagemaker: SageMaker
) -> dict[str, Any]:
    """What SageMaker gives the image on one host of the same job."""
    words = {"instance_type": "ml.m5.large", "role": sagemaker.role, "image_uri": URI}
    estimator = Estimator("probe.py", driver.SCRIPTS, **words | JOBS[name])
    uri = f"s3://{sagemaker.bucket}/inputs"
    plan: Any = estimator.plan({"train": uri}, job_name=name)
    code = plan.code_uri.removeprefix(f"s3://{sagemaker.bucket}/")
    for key, body in {"inputs/a.txt": b"hello", code: b"an archive"}.items():
        sagemaker.client("s3").put_object(Bucket=sagemaker.bucket, Key=key, Body=body)
    paths = Paths(place / "sagemaker" / host)
    host_files.prepare(plan.request, paths, host, hosts)
    return {
        "argv": [],
        "environ": plan.request.get("Environment", {}) | {"TRAINING_JOB_NAME": name},
        "config": {path.name: json.loads(path.read_text()) for path in paths.config.iterdir()},
        "data": {
            str(path.relative_to(paths.root)): path.read_text()
            for path in paths.input.rglob("*.txt")
        },
    }
