"""Jobs that benchmarks run, in a directory that goes when they are done; what they print."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trcomp import Estimator, TrainingCompilerConfig, flags


@contextmanager
def own_home() -> Iterator[Path]:
    """A directory for the jobs of a block."""
    before = os.environ.get(flags.HOME.name)
    with tempfile.TemporaryDirectory() as home:
        os.environ[flags.HOME.name] = home
        try:
            yield Path(home)
        finally:
            del os.environ[flags.HOME.name]
            if before is not None:
                os.environ[flags.HOME.name] = before


def printed(script: Path, *, enabled: bool, devices: int, **hyperparameters: Any) -> list[str]:
    """Run a job to its end; the lines of all its workers."""
    estimator = Estimator(
        script,
        compiler_config=TrainingCompilerConfig(enabled=enabled),
        environment={"GPU_NUM_DEVICES": str(devices)},
        hyperparameters=hyperparameters,
    )
    estimator.fit(wait=False)
    job = estimator.latest_training_job
    assert job is not None
    try:
        job.wait()
        return list(job.logs())
    finally:
        job.stop()
