"""What is secret reaches the script, and no record, page or report of its job."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from trcomp import Estimator, Job, JobFailedError, flags
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
