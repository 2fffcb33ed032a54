"""A container engine, or a loud word that there is none; `make docker` starts one."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.docker import base_image, wheels
from tests.docker.jobs import Place
from trcomp.errors import BackendUnavailableError, JobNotFoundError
from trcomp.images.engine import connect

REQUIRED = "DOCKER_TESTS"
"""Set to "required", this variable makes a missing engine an error."""
BUDGET = "DOCKER_TESTS_SECONDS"
"""After this time, if it is set, no more of these tests are begun."""
_HERE = Path(__file__).parent
_BEGIN = pytest.StashKey[float]()
_MISSING: Counter[str] = Counter()
"""What there is not, in a sentence, and how many tests did not run for it."""


def missing(reason: str) -> NoReturn:
    """Skip a test, and say so at the end of the run."""
    _MISSING[reason] += 1
    pytest.skip(reason.partition("\n")[0])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.docker)


def pytest_runtest_setup(item: pytest.Item) -> None:
    seconds = float(os.environ.get(BUDGET, "inf"))
    begin = item.config.stash.setdefault(_BEGIN, time.monotonic())
    if time.monotonic() - begin > seconds:
        missing(f"Their time was up: {BUDGET}={seconds:g}. `make docker` runs all of them.")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _MISSING:
        terminalreporter.section("TESTS OF CONTAINERS DID NOT RUN", yellow=True, bold=True)
    for reason, count in _MISSING.items():
        terminalreporter.line(f"{count} tests: {reason}", yellow=True)


@pytest.fixture(scope="session")
def connection() -> Iterator[Any]:
    """A client of the engine, or why there is none."""
    try:
        client = connect()
    except BackendUnavailableError as error:
        if os.environ.get(REQUIRED) == "required":
            raise
        yield error
        return
    yield client
    client.close()


@pytest.fixture
def engine(connection: Any) -> Any:
    """A client of the engine; the test is skipped where there is none."""
    if isinstance(connection, BackendUnavailableError):
        missing(str(connection))
    return connection


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


@pytest.fixture
def settings(engine: Any, image: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Build arguments that need no network; commands have them from the environment."""
    found = wheels.build_args(engine, image)
    monkeypatch.setenv("TRCOMP_BUILD_ARGS", wheels.as_text(found))
    return found
