"""The pytest fixture `sagemaker`: pytest_plugins = ["trcomp.testing.plugin"] in conftest.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from trcomp.testing.server import SageMaker, serving


@pytest.fixture
def sagemaker(tmp_path: Path) -> Iterator[SageMaker]:
    """AWS on this machine: S3, CloudWatch Logs and training jobs that really run."""
    with serving(tmp_path / "sagemaker") as stand_in:
        yield stand_in
