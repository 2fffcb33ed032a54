"""The same jobs as processes on this machine and in SageMaker's stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity import driver
from tests.parity.jobs import JOBS
from trcomp.testing import SageMaker

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.parametrize("name", JOBS)
def test_a_job_is_alike_as_processes_and_in_sagemaker(
    name: str, tmp_path: Path, sagemaker: SageMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = driver.processes(tmp_path)
    cloud = driver.in_sagemaker(tmp_path, sagemaker)
    driver.compare(name, processes, cloud, monkeypatch)
