"""The same jobs as processes on this machine and in containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.parity import driver
from tests.parity.jobs import JOBS


@pytest.mark.parametrize("name", JOBS)
def test_a_job_is_alike_as_processes_and_in_containers(
    name: str, tmp_path: Path, engine: Any, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes, containers = driver.processes(tmp_path), driver.in_containers(tmp_path, image)
    driver.compare(name, processes, containers, monkeypatch)
