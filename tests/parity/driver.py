"""Runs one job in two places: what its script was given and what was left must be alike."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.parity.differences import comparable
from tests.parity.jobs import JOBS
from trcomp import Estimator, Job, JobFailedError, flags
from trcomp.testing import SageMaker

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass
class Seen:
    """What became of a job in one place."""

    given: dict[str, Any] = field(default_factory=dict)
    """What the script of each host and rank was given."""
    files: list[str] = field(default_factory=list)
    """What lies in which archive."""
    lines: list[str] = field(default_factory=list)
    """Of what the scripts printed."""
    status: str = ""
    exit_code: int = 0
    blamed: tuple[str | None, int | None] = (None, None)
    traceback: str = ""


@dataclass(frozen=True)
class Place:
    """A kind of machine that jobs run on.

    Attributes:
        directory: For what jobs need and leave.
        words: What jobs there need beside their own words.
        sagemaker: The stand-in, for that place.
    """

    directory: Path
    words: dict[str, Any]
    sagemaker: SageMaker | None = None

    def run(self, name: str, words: dict[str, Any]) -> Seen:
        """Run the probe as a job."""
        inputs, checkpoints = self.directory / "inputs", str(self.directory / "checkpoints")
        inputs.mkdir(parents=True)
        (inputs / "a.txt").write_text("hello")
        channel = str(inputs)
        if self.sagemaker is not None:
            channel, checkpoints = (
                f"s3://{self.sagemaker.bucket}/{place}" for place in ("inputs", "checkpoints")
            )
            upload = self.sagemaker.client("s3").upload_file
            upload(str(inputs / "a.txt"), self.sagemaker.bucket, "inputs/a.txt")
        own = {word: value for word, value in words.items() if word != "checkpoints"}
        if "checkpoints" in words:
            own["checkpoint_s3_uri"] = checkpoints
        estimator = Estimator("probe.py", SCRIPTS, **self.words | own)
        seen = Seen()
        try:
            estimator.fit({"train": channel}, logs=False, job_name=name)
        except JobFailedError as error:
            seen.exit_code, seen.traceback = error.exit_code, _placeless(error.traceback or "")
            seen.blamed = (error.host, error.rank)
        job = estimator.latest_training_job
        assert job is not None
        self._look(job, seen)
        return seen

    def _look(self, job: Job, seen: Seen) -> None:
        seen.status = str(job.status())
        seen.lines = sorted(line for line in job.logs() if "given" in line)
        for path in job.download(self.directory / "results"):
            with tarfile.open(path) as archive:
                for member in filter(tarfile.TarInfo.isfile, archive):
                    seen.files.append(f"{path.name}: {member.name}")
                    if re.fullmatch(r"[^/]+\.json", member.name):
                        content = archive.extractfile(member)
                        assert content is not None
                        seen.given[member.name] = json.loads(content.read())


def processes(place: Path) -> Place:
    """This machine, without containers."""
    return Place(place / "process", {"instance_type": "local_process"})


def in_containers(place: Path, image: str) -> Place:
    """Containers on this machine."""
    return Place(place / "docker", {"instance_type": "local", "image_uri": image})


def in_sagemaker(place: Path, sagemaker: SageMaker) -> Place:
    """The stand-in for SageMaker."""
    words = {"instance_type": "ml.m5.large", "role": sagemaker.role, "image_uri": "image"}
    return Place(place / "sagemaker", words, sagemaker)


def compare(name: str, first: Place, second: Place, patch: pytest.MonkeyPatch) -> None:
    """Run a job of `JOBS` in two places, and hold one against the other."""
    seen = []
    for place in (first, second):
        # A job of that name may be in each.
        patch.setenv(flags.HOME.name, str(place.directory / "home"))
        seen.append(place.run(name, JOBS[name]))
        machine = dict(os.environ)
        for file, given in seen[-1].given.items():
            seen[-1].given[file] = comparable(given, machine)
    mine, its = (_values(one) for one in seen)
    differing = [k for k in mine.keys() | its.keys() if mine.get(k, ...) != its.get(k, ...)]
    told = (f"{key}: {mine.get(key)!r} and {its.get(key)!r}" for key in sorted(differing))
    assert not differing, "\n".join(told)


def _placeless(traceback: str) -> str:
    """A traceback in which the script lies in /opt/ml."""
    return re.sub(r'File ".+/(code/[^"/]+)"', r'File "/opt/ml/\1"', traceback)


def _values(seen: Seen) -> dict[str, Any]:
    """All that was seen, value by value."""
    values = dataclasses.asdict(seen)
    for file, given in values.pop("given").items():
        values |= {f"{file} {key}": value for key, value in given.items()}
    return values
