"""A container engine, or a loud word that there is none; `make docker` starts one."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.docker import base_image
from tests.docker.jobs import Place
from trcomp.errors import BackendUnavailableError, JobNotFoundError
from trcomp.images.engine import connect

REQUIRED = "DOCKER_TESTS"
"""Set to "required", this variable makes a missing engine an error."""
_HERE = Path(__file__).parent


class _Engine:
    reason: str | None = None
    skipped = 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.docker)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _Engine.reason is not None:
        terminalreporter.section("NO CONTAINER ENGINE", yellow=True, bold=True)
        terminalreporter.line(f"{_Engine.skipped} tests of containers DID NOT RUN.", yellow=True)
        terminalreporter.line(_Engine.reason)


@pytest.fixture(scope="session")
def client() -> Iterator[Any]:
    """A client of the engine."""
    try:
        found = connect()
    except BackendUnavailableError as error:
        if os.environ.get(REQUIRED) == "required":
            raise
        _Engine.reason = str(error)
        yield None
        return
    yield found
    found.close()


@pytest.fixture
def engine(client: Any) -> Any:
    """A client of the engine; the test is skipped where there is none."""
    if client is None:
        _Engine.skipped += 1
        pytest.skip("no container engine; see the summary")
    return client


@pytest.fixture
def image(engine: Any) -> str:
    """An image with Python and nothing else."""
    from docker.errors import ImageNotFound

    digest = hashlib.sha256(Path(base_image.__file__).read_bytes() + sys.version.encode())
    name = f"trcomp-tests/base:{digest.hexdigest()[:12]}"
    try:
        engine.images.get(name)
    except ImageNotFound:
        base_image.make(engine, name)
    return name


@pytest.fixture
def place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Any, image: str
) -> Iterator[Place]:
    """Where a test's jobs are kept; what it leaves in the engine is removed."""
    monkeypatch.setenv("TRCOMP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRCOMP_GRACE_SECONDS", "10")
    found = Place(tmp_path, image, engine)
    yield found
    for job in found.submitted:
        for _ in range(2):
            with suppress(BackendUnavailableError, JobNotFoundError):
                job.stop()
