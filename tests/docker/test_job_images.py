"""Images of jobs in containers: trcomp's own, others', those with SageMaker's toolkit."""

from __future__ import annotations

import pytest

from tests.docker.jobs import Place
from trcomp import JobFailedError
from trcomp.cli import main

TOOLKIT = """\
#!/usr/bin/env python3
# Does as `train` of sagemaker-training does: calls what SAGEMAKER_TRAINING_MODULE names, or its own
# runner; an exception's errno becomes the exit code, and a failure file is not replaced.
import importlib, os, pathlib, subprocess, sys, traceback
code, failure = 0, pathlib.Path("/opt/ml/output/failure")
try:
    if os.environ.get("SAGEMAKER_TRAINING_MODULE"):
        module, name = os.environ["SAGEMAKER_TRAINING_MODULE"].split(":")
        getattr(importlib.import_module(module), name)()
    else:
        print("the toolkit's own runner", flush=True)
        subprocess.run([sys.executable, "/opt/ml/code/train.py"], check=True)
    pathlib.Path("/opt/ml/output/success").touch()
except Exception as error:
    if not failure.exists():
        failure.write_text("Framework Error: \\n" + traceback.format_exc())
    code = int(getattr(error, "errno", 1))
finally:
    sys.exit(code)
"""


@pytest.mark.slow
def test_without_image_uri_trcomp_builds_its_own(
    place: Place, settings: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    script = "import shutil, trcomp; print(shutil.which('train'), trcomp.__file__)"
    # Its torch is a mere name: the script, which does without, is all that runs.
    for number in range(2):
        job = place.started(
            script, f"job-{number}", image_uri=None, mounts={}, environment={"PYTHONPATH": ""}
        )
        job.wait(timeout=240)
        assert any("/opt/trcomp/bin/train /opt/trcomp/trcomp" in line for line in job.logs())
    assert capsys.readouterr().err.count("Building") <= 1


def test_an_image_without_python_is_told_so(place: Place) -> None:
    job = place.started("", environment={"PATH": "/nowhere"})
    with pytest.raises(JobFailedError, match="neither 'train' nor Python") as caught:
        job.wait(timeout=120)
    assert caught.value.exit_code == 69


def test_an_engine_without_gpus_is_told_so(place: Place) -> None:
    runtimes = place.client.info()["Runtimes"]
    if "nvidia" in runtimes:
        pytest.skip("this engine has GPUs")
    job = place.started("", instance_type="local_gpu")
    with pytest.raises(JobFailedError, match=r"Could not start(.|\n)*container toolkit") as caught:
        job.wait(timeout=120)
    assert (caught.value.host, caught.value.exit_code) == ("algo-1", 69)
    assert place.containers(job) == place.networks(job) == []


def test_an_image_that_is_not_there_is_told_so(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    script = place.root / "train.py"
    script.write_text("")
    words = ["--instance-type", "local", "--image-uri", "127.0.0.1:9/none:1"]
    assert main(["run", str(script), *words]) == 69
    assert "docker pull 127.0.0.1:9/none:1" in capsys.readouterr().err
    assert not (place.root / "home").exists()


@pytest.mark.parametrize(
    ("ours", "code"), [(False, 0), (True, 0), (True, 5)], ids=["toolkit", "ours", "ours fails"]
)
def test_the_toolkits_runner_is_replaced_only_where_it_is_told_so(
    place: Place, ours: bool, code: int
) -> None:
    (place.root / "bin").mkdir()
    (place.root / "bin" / "train").write_text(TOOLKIT)
    (place.root / "bin" / "train").chmod(0o755)
    entry = {"SAGEMAKER_TRAINING_MODULE": "trcomp.entrypoint.training:main"}
    job = place.started(
        f"import os, sys; print('rank', os.environ.get('RANK')); sys.exit({code})",
        mounts={str(place.root / "bin"): "/toolkit:ro"},
        environment={"PATH": f"/toolkit:{place.path}"} | (entry if ours else {}),
    )
    if code:
        with pytest.raises(JobFailedError, match="SystemExit: 5") as caught:
            job.wait(timeout=120)
        assert caught.value.exit_code == code
        return
    job.wait(timeout=120)
    lines = list(job.logs())
    assert ("the toolkit's own runner" in lines) is not ours
    assert any("rank 0" in line if ours else "rank None" in line for line in lines)
