"""What is secret reaches the script, and no record, page or report of its job."""

from __future__ import annotations

import gzip
import hashlib
import stat
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from trcomp import Estimator, Job, JobFailedError, TrainingCompilerConfig, flags
from trcomp.cli import main

pytestmark = pytest.mark.e2e

SECRET = "xyzzy-3141"
SCRIPT = f"""
import os, sys
assert os.environ["API_TOKEN"] == "{SECRET}" and "{SECRET}" in sys.argv
raise ValueError("this has failed")
"""


def test_a_secret_is_in_no_file_of_its_job_but_those_that_the_script_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(flags.HOME.name, str(tmp_path / "home"))
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    proxy = f"http://me:{SECRET}@proxy:3128"
    estimator = Estimator(
        script,
        environment={"API_TOKEN": SECRET, "PIP_INDEX_URL": proxy},
        hyperparameters={"db-password": SECRET},
        arguments=["--access-key", SECRET, f"--token={SECRET}"],
    )
    print(estimator.plan(job_name="quiet").to_json(), estimator.plan(job_name="quiet"))
    with pytest.raises(JobFailedError, match="this has failed") as caught:
        estimator.fit(job_name="quiet")
    print(caught.value, caught.value.traceback, Job.attach("quiet").describe())
    for command in ("status", "logs", "report"):
        assert main([command, "quiet"]) == 0
    captured = capsys.readouterr()
    assert "http://me:***@proxy:3128" in captured.out
    assert SECRET not in captured.out + captured.err
    job = tmp_path / "home" / "jobs" / "quiet"
    told = {
        path.relative_to(job).as_posix()
        for path in job.rglob("*")
        if path.is_file() and SECRET.encode() in path.read_bytes()
    }
    # The contract's own file, which the script is started from.
    assert told <= {
        "hosts/algo-1/ml/input/config/hyperparameters.json",
        "hosts/algo-1/ml/code/train.py",
    }
    modes = {name: stat.S_IMODE((job / name).stat().st_mode) for name in ("", "job.json")}
    assert modes == {"": 0o700, "job.json": 0o600}
    for name in ("plan.json", "report.json", "report.html"):
        assert stat.S_IMODE((job / name).stat().st_mode) == 0o600


TRAINS = """
import argparse, hashlib, os, time
import torch
import trcomp.runtime as rt

parser = argparse.ArgumentParser()
for name in ("db-password", "access-key", "token", "go"):
    parser.add_argument(f"--{name}")
given = parser.parse_args()
found = [os.environ["API_TOKEN"], given.db_password, given.access_key, given.token]
assert {hashlib.sha256(one.encode()).hexdigest() for one in found} == {os.environ["DIGEST"]}

weight = torch.ones(3, device="xla", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(6):
    for batch in rt.DeviceLoader([torch.ones(4, 3)]):
        optimizer.zero_grad()
        loss = (batch @ weight).square().mean()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.4f}", flush=True)
while not os.path.exists(given.go):
    time.sleep(0.05)
"""


class _Commands:
    """What every process of this machine is called with, while it is entered."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> _Commands:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.02):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    self.seen.add(path.read_bytes())


def _holding(root: Path) -> set[str]:
    """Files under a directory that hold the secret, compressed or not."""
    found = set()
    for path in root.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            data += gzip.decompress(data) if data[:2] == b"\x1f\x8b" else b""
            if SECRET.encode() in data:
                found.add(path.relative_to(root).as_posix())
    return found


@pytest.mark.slow
def test_a_secret_is_in_nothing_that_a_training_job_shows_leaves_or_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(flags.HOME.name, str(tmp_path / "home"))
    script, go = tmp_path / "train.py", tmp_path / "go"
    script.write_text(TRAINS)
    estimator = Estimator(
        script,
        environment={
            "API_TOKEN": SECRET,
            "GPU_NUM_DEVICES": "2",
            "DIGEST": hashlib.sha256(SECRET.encode()).hexdigest(),
        },
        hyperparameters={"db-password": SECRET, "go": str(go)},
        arguments=["--access-key", SECRET, f"--token={SECRET}"],
        compiler_config=TrainingCompilerConfig(debug=True, profile_steps=(2, 4)),
    )
    with _Commands() as commands:
        estimator.fit(job_name="quiet", wait=False)
        job = Job("process://quiet")
        while sum("loss " in line for line in job.logs()) < 12:
            assert not job.status().ended, list(job.logs())
        assert main(["top", "quiet"]) == 0
        go.touch()
        assert job.wait() == "Completed"
    assert sum(b"trcomp.entrypoint.worker" in one for one in commands.seen) >= 1
    assert [one for one in commands.seen if SECRET.encode() in one] == []
    page, traces = tmp_path / "page.html", tmp_path / "traces"
    for words in (
        *(["status", "quiet"], ["status", "quiet", "--json"], ["logs", "quiet"]),
        *(["report", "quiet"], ["report", "quiet", "--json"]),
        *(["report", "quiet", "--html", str(page)], ["profile", "quiet", "--to", str(traces)]),
        *(["doctor", "quiet"], ["doctor", "quiet", "--json"]),
        *(["top", "quiet"], ["top", "quiet", "--json"], ["list", "--json"]),
    ):
        assert main(words) == 0, words
    assert SECRET not in "".join(capfd.readouterr())
    assert page.exists() and len(list(traces.rglob("*.pb"))) == 2
    data = tmp_path / "home/jobs/quiet/hosts/algo-1/ml/output/data"
    assert (data / "trcomp/metrics.jsonl").exists() and any((data / "compiler").iterdir())
    # The contract's own file, which the script is started from.
    assert _holding(tmp_path) <= {
        "home/jobs/quiet/hosts/algo-1/ml/input/config/hyperparameters.json"
    }


def _plant(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("API_TOKEN", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "TRCOMP_REGISTRY_PASSWORD"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:{SECRET}@127.0.0.1:9")


@pytest.mark.parametrize("form", [[], ["--explain"], ["--json"], ["--explain", "--old-image"]])
def test_the_variables_of_this_machine_are_not_shown(
    form: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _plant(monkeypatch)
    assert main(["env", "--devices", "2", *form]) == 0
    shown = "".join(capfd.readouterr())
    assert "WORLD_SIZE" in shown and SECRET not in shown


@pytest.mark.slow
def test_the_doctor_of_this_machine_shows_none(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _plant(monkeypatch)
    with _Commands() as commands:
        main(["doctor"])  # Whatever it finds.
    shown = "".join(capfd.readouterr())
    assert "proxy" in shown and SECRET not in shown
    assert [one for one in commands.seen if SECRET.encode() in one] == []
