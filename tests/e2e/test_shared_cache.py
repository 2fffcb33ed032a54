"""Jobs that keep their executables in S3: the second compiles nothing; without S3 it compiles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import s3_server
from tests.e2e.test_data_parallel import results, run
from tests.s3_server import BUCKET
from trcomp import TrainingCompilerConfig

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CONFIG = TrainingCompilerConfig(cache=f"s3://{BUCKET}/team")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with s3_server.running(monkeypatch) as client:
        yield client


def trained(
    hosts: int, place: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[set[tuple[int, int]], list[Any], list[str]]:
    """Each rank's compiles and loads, its losses, and what the cache said."""
    estimator, lines = run("regression.py", 1, hosts, place, monkeypatch, compiler_config=CONFIG)
    assert estimator.latest_training_job is not None
    ranks = estimator.latest_training_job.report()["ranks"]
    counts = {(rank["compiles"], rank["loads"]) for rank in ranks}
    said = [line.partition("[cache] ")[2] for line in lines if "[cache] " in line]
    return counts, [result["losses"] for result in results(lines)], said


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_second_job_compiles_nothing(
    hosts: int, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold, losses, said = trained(hosts, tmp_path, monkeypatch)
    ((compiles, loads),) = cold
    assert compiles > 0 and loads == 0
    # What a job of one rank used first is noted beside it, for the next job's head start.
    stored = compiles + 1 if hosts == 1 else compiles
    assert sorted(line.split(" (")[0] for line in said) == sorted(
        ["0 files", f"{stored} new files"] * hosts
    )
    warm, losses_again, said = trained(hosts, tmp_path, monkeypatch)
    assert warm == {(0, compiles)}
    assert losses_again == losses
    assert sorted(line.split(" (")[0].split(" for ")[0] for line in said) == sorted(
        [f"{stored * hosts} files", "nothing new"] * hosts
    )


def test_a_job_that_may_not_use_the_place_compiles(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.delete_bucket(Bucket=BUCKET)
    counts, losses, said = trained(1, tmp_path, monkeypatch)
    ((compiles, loads),) = counts
    assert compiles > 0 and loads == 0 and losses
    assert len(said) == 2
    assert all("NoSuchBucket" in line for line in said)
