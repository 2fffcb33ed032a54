"""One seeded script, started in every way there is: the same ranks, numbers and logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trcomp import Estimator, JobFailedError, TrainingCompilerConfig

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SCRIPTS = Path(__file__).parent / "scripts"

WAYS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "one process": (1, 1, {"compiler_config": TrainingCompilerConfig()}),
    "started by the entrypoint": (2, 1, {"compiler_config": TrainingCompilerConfig()}),
    "pytorchxla": (
        2,
        1,
        {
            "compiler_config": TrainingCompilerConfig(),
            "distribution": {"pytorchxla": {"enabled": True}},
        },
    ),
    "started by the script": (2, 1, {}),
    "two hosts": (2, 2, {"compiler_config": TrainingCompilerConfig()}),
    "two hosts, started by the script": (2, 2, {}),
    "without XLA": (2, 1, {"compiler_config": TrainingCompilerConfig(enabled=False)}),
    "without XLA on two hosts": (
        2,
        2,
        {"compiler_config": TrainingCompilerConfig(enabled=False)},
    ),
}


def run(
    script: str, devices: int, hosts: int, place: Path, patch: pytest.MonkeyPatch, **words: Any
) -> tuple[Estimator, list[str]]:
    """Run a script as a job to its end; the job's lines."""
    patch.setenv("TRCOMP_HOME", str(place / "home"))
    patch.setenv("GPU_NUM_DEVICES", str(devices))
    estimator = Estimator(
        script, SCRIPTS, instance_type="local_process", instance_count=hosts, **words
    )
    try:
        estimator.fit(logs=False)
    finally:
        job = estimator.latest_training_job
        assert job is not None
        lines = list(job.logs())
    return estimator, lines


def results(lines: list[str]) -> list[dict[str, Any]]:
    """What each rank found, in the order of ranks; each line must carry its rank's prefix."""
    found = {}
    for line in lines:
        before, marker, text = line.partition("RESULT ")
        if marker:
            result = json.loads(text)
            assert before.endswith(f"rank {result['rank']}] ")
            assert before.count("rank") == 1
            found[result["rank"]] = result
    return [found[rank] for rank in sorted(found)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of one rank that trains on all of each batch."""
    with pytest.MonkeyPatch.context() as patch:
        devices, hosts, words = WAYS["one process"]
        _, lines = run(
            "regression.py", devices, hosts, tmp_path_factory.mktemp("alone"), patch, **words
        )
    (result,) = results(lines)
    return list(result["losses"])


@pytest.mark.parametrize("way", [way for way in WAYS if way != "one process"])
def test_every_way_gives_the_same_ranks_numbers_and_logs(
    way: str, alone: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices, hosts, words = WAYS[way]
    estimator, lines = run("regression.py", devices, hosts, tmp_path, monkeypatch, **words)
    found = results(lines)
    assert [result["rank"] for result in found] == list(range(devices * hosts))
    assert [result["local"] for result in found] == list(range(devices)) * hosts
    assert {result["world"] for result in found} == {devices * hosts}
    for result in found:
        assert result["index"] == result["local"]
        assert result["losses"] == pytest.approx(alone, rel=1e-5)
    assert len([line for line in lines if line.endswith("rank 0] master")]) == 1
    job = estimator.latest_training_job
    assert job is not None
    workers = job.report()["ranks"]
    assert [worker["rank"] for worker in workers] == list(range(devices * hosts))
    assert {worker["steps"] for worker in workers} == {12}


def test_a_second_job_loads_what_the_first_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainingCompilerConfig(cache=tmp_path / "executables")
    counts, losses = [], []
    for _ in range(2):
        estimator, lines = run("regression.py", 2, 1, tmp_path, monkeypatch, compiler_config=config)
        assert estimator.latest_training_job is not None
        ranks = estimator.latest_training_job.report()["ranks"]
        counts.append({(rank["compiles"], rank["loads"]) for rank in ranks})
        losses.append([result["losses"] for result in results(lines)])
    ((compiles, loads),) = counts[0]
    assert compiles > 0
    assert loads == 0
    assert counts[1] == {(0, compiles)}
    assert losses[1] == losses[0]


def test_nprocs_that_does_not_fit_fails_the_job_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(JobFailedError, match="nprocs=2, but this host has 3 devices"):
        run("seed_vit.py", 3, 1, tmp_path, monkeypatch)


@pytest.mark.parametrize("words", [{}, {"compiler_config": TrainingCompilerConfig(enabled=False)}])
def test_the_failing_rank_is_blamed_whoever_started_it(
    words: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(JobFailedError) as caught:
        run("one_rank_fails.py", 2, 1, tmp_path, monkeypatch, **words)
    assert (caught.value.rank, caught.value.host, caught.value.exit_code) == (1, "algo-1", 1)
    assert "ValueError: rank one is bad" in str(caught.value)
    assert 'in run\n    raise ValueError("rank one is bad")' in caught.value.traceback


@pytest.mark.parametrize("words", [{}, {"compiler_config": TrainingCompilerConfig()}])
def test_a_killed_rank_is_blamed_and_not_the_peer_that_lost_it(
    words: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(JobFailedError, match="SIGKILL") as caught:
        run("one_rank_dies.py", 2, 1, tmp_path, monkeypatch, **words)
    assert (caught.value.exit_code, caught.value.rank) == (137, 1)


def test_a_rank_that_the_script_started_keeps_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(JobFailedError) as caught:
        run("one_rank_fails.py", 2, 1, tmp_path, monkeypatch, hyperparameters={"exit": ""})
    assert caught.value.exit_code == 7


@pytest.mark.parametrize(
    "words",
    [{}, {"compiler_config": TrainingCompilerConfig()}],
    ids=["started by the script", "started by the entrypoint"],
)
def test_the_seed_script_runs_as_it_is_in_both_ways(
    words: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimator, lines = run("seed_vit.py", 2, 1, tmp_path, monkeypatch, **words)
    steps = [line for line in lines if "mean step time is" in line]
    assert [line.split("]")[0][-6:] for line in steps] == ["rank 0"] * 3
    assert not [line for line in lines if "Traceback" in line]
    # Python shows deprecations of what a main script calls; each is said once.
    warned = [line for line in lines if "Warning" in line]
    assert len(warned) <= 1
    assert all("xla_device is deprecated: use torch_xla.device()" in line for line in warned)
    job = estimator.latest_training_job
    assert job is not None
    for worker in job.report()["ranks"]:
        assert worker["steps"] == 6
        assert worker["samples_per_step"] == 4
        assert worker["compiles"] <= 2
        assert not worker["fallbacks"]
