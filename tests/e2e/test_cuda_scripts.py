"""Scripts of several GPUs, unmodified, on two ranks: the numbers of gloo on the CPU."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from trcomp import Estimator, TrainingCompilerConfig, flags

pytestmark = [pytest.mark.e2e, pytest.mark.runtime, pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPTS = Path(__file__).parent / "scripts"
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node=2")
ON_CUDA = {"is_xla = True": "is_xla = False"}
TELLS = {
    "num_hidden_layers=2": "num_hidden_layers=1",
    "    dataset = FakeDataset()": "    torch.manual_seed(0)\n    dataset = FakeDataset()",
    "            optimizer.step()\n": "            optimizer.step()\n"
    '        print(f"LOSS {rank} {loss.item()}\\n", end="", flush=True)\n',
}
ON_THE_CPU = {
    '"nccl"': '"gloo"',
    "torch.cuda.set_device(rank)": "pass",
    "torch.cuda.current_device()": '"cpu"',
    "DDP(model, device_ids=[local_rank])": "DDP(model)",
}


def seed_script(folder: Path, *changes: dict[str, str]) -> Path:
    """The first seed's script: its own switch turned to CUDA, and seeded losses told."""
    text = (SCRIPTS / "seed_vit.py").read_text()
    for old, new in {
        k: v for change in (ON_CUDA, TELLS, *changes) for k, v in change.items()
    }.items():
        assert old in text
        text = text.replace(old, new)
    path = folder / "train.py"
    path.write_text(text)
    return path


def run(script: Path, *before: str, maps: bool) -> str:
    """What a script prints that is started outside a job."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    ours = {
        flags.CUDA_TO_XLA.name: str(int(maps)),
        "JAX_PLATFORMS": "cpu",
        "GPU_NUM_DEVICES": "2",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": "1",
    }
    at = ("--master-port", port) if before else ()
    alone = () if maps or not before else (str(Path(__file__).with_name("plain.py")),)
    ended = subprocess.run(
        [sys.executable, *before, *at, *alone, str(script)],
        env={**os.environ, **ours},
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def losses(text: str) -> list[list[float]]:
    """Each rank's losses, which all print in order."""
    found = re.findall(r"LOSS (\d) (\S+)", text)
    return [[float(loss) for rank, loss in found if rank == wanted] for wanted in ("0", "1")]


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> list[list[float]]:
    """The losses of the same script with gloo on the CPU, where `cuda` is not mapped."""
    script = seed_script(tmp_path_factory.mktemp("gloo"), ON_THE_CPU)
    found = losses(run(script, maps=False))
    assert [len(each) for each in found] == [6, 6]
    return found


@pytest.mark.parametrize(
    "before",
    [
        pytest.param((), id="its own spawn", marks=pytest.mark.long),
        pytest.param(TORCHRUN, id="torchrun"),
    ],
)
def test_the_seed_script_outside_a_job(
    before: Sequence[str], wanted: list[list[float]], tmp_path: Path
) -> None:
    found = losses(run(seed_script(tmp_path), *before, maps=True))
    for rank in (0, 1):
        assert found[rank] == pytest.approx(wanted[rank], rel=1e-5)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param({"compiler_config": TrainingCompilerConfig()}, id="started by the entrypoint"),
        pytest.param({}, id="started by the script", marks=pytest.mark.long),
    ],
)
def test_the_seed_script_in_a_job(
    words: dict[str, Any],
    wanted: list[list[float]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRCOMP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GPU_NUM_DEVICES", "2")
    source = tmp_path / "source"
    source.mkdir()
    estimator = Estimator(
        seed_script(source).name, source, instance_type="local_process", instance_count=1, **words
    )
    estimator.fit(logs=False)
    job = estimator.latest_training_job
    assert job is not None
    found = losses("\n".join(job.logs()))
    for rank in (0, 1):
        assert found[rank] == pytest.approx(wanted[rank], rel=1e-5)
    for worker in job.report()["ranks"]:
        assert worker["steps"] == 6
        assert worker["compiles"] <= 3
        assert not worker["fallbacks"]


def results(text: str) -> list[dict[str, Any]]:
    """What each rank found, in order."""
    found = [
        json.loads(line.partition("RESULT ")[2]) for line in text.splitlines() if "RESULT" in line
    ]
    return sorted(found, key=lambda result: int(result["rank"]))


def test_a_torchrun_script_with_everything(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text((SCRIPTS / "ddp_cuda.py").read_text())
    wanted = results(run(script, *TORCHRUN, maps=False))
    found = results(run(script, *TORCHRUN, maps=True))
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-4)
        assert ours["weights"] == pytest.approx(theirs["weights"], rel=1e-4)
        assert ours["devices"] == [[0, "cuda:0"], [1, "cuda:1"]]
