"""Jobs in containers for tests: the image is this machine's Python, its packages are mounted."""

from __future__ import annotations

import sysconfig
import textwrap
from pathlib import Path
from typing import Any

from trcomp import Estimator, Job, TrainingCompilerConfig
from trcomp.backends import docker_objects

PACKAGES = sysconfig.get_path("platlib")
"""Where torch and jax are; the image has neither, nor trcomp."""


class Place:
    """Where a test's jobs are kept, and the image that they run in."""

    def __init__(self, root: Path, image: str, client: Any) -> None:
        self.root = root
        self.image = image
        self.client = client
        self.submitted: list[Job] = []

    @property
    def path(self) -> str:
        """The image's own PATH."""
        variables = self.client.images.get(self.image).attrs["Config"]["Env"]
        return dict(text.split("=", 1) for text in variables)["PATH"]

    def estimator(self, script: str, **words: Any) -> Estimator:
        """An estimator for a script that needs no framework, unless the words say so."""
        code = self.root / "code"
        code.mkdir(exist_ok=True)
        (code / "train.py").write_text(textwrap.dedent(script).lstrip("\n"))
        words.setdefault("compiler_config", TrainingCompilerConfig(enabled=False))
        words["environment"] = {"PYTHONPATH": "/packages"} | words.get("environment", {})
        words["mounts"] = {PACKAGES: "/packages:ro"} | words.get("mounts", {})
        words = {"instance_type": "local", "image_uri": self.image} | words
        return Estimator("train.py", code, **words)

    def started(self, script: str, job_name: str = "job", inputs: Any = None, **words: Any) -> Job:
        """A job that runs; it does not outlive the test."""
        estimator = self.estimator(script, **words)
        estimator.fit(inputs, wait=False, job_name=job_name)
        job = estimator.latest_training_job
        assert job is not None
        self.submitted.append(job)
        return job

    def containers(self, job: Job) -> list[Any]:
        """What the engine has of a job, host by host."""
        found = docker_objects.containers(self.client, job.name, self._directory(job))
        return sorted(found, key=lambda container: str(container.name))

    def networks(self, job: Job) -> list[Any]:
        """The job's networks."""
        return docker_objects.networks(self.client, job.name, self._directory(job))

    def _directory(self, job: Job) -> Path:
        return self.root / "home" / "jobs" / job.name


def until(job: Job, text: str, count: int = 1) -> list[str]:
    """The lines of a job up to the count-th that holds a text."""
    lines: list[str] = []
    for line in job.logs(follow=True):
        lines.append(line)
        count -= text in line
        if not count:
            return lines
    raise AssertionError(f"{job} ended without {text!r}: {lines}")
