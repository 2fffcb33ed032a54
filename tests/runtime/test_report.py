"""What a worker leaves at its end."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from tests.runtime.rank_scripts import run_script
from trcomp.env.topology import uniform
from trcomp.runtime import report
from trcomp.runtime.metrics import counters

pytestmark = pytest.mark.runtime


@pytest.mark.parametrize(
    ("marks", "seconds"),
    [
        ([], None),
        ([1.0], None),
        ([1.0, 4.0], 3.0),
        ([0.0, 100.0, 101.0, 102.0, 103.0, 104.0], 1.0),
        ([float(i) for i in range(20)], 1.0),
    ],
)
def test_the_steady_step_leaves_out_the_warm_up(marks: list[float], seconds: float | None) -> None:
    assert report.steady_step_seconds(marks) == seconds


def test_a_rank_leaves_its_counters_and_its_throughput(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRCOMP_REPORT_DIR", str(tmp_path / "trcomp"))
    monkeypatch.setenv("TRCOMP_TOPOLOGY", uniform(["algo-1", "algo-2"], 2, "cpu").to_json())
    monkeypatch.setenv("TRCOMP_HOST_INDEX", "1")
    places = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(counters, "steps", 4)
    monkeypatch.setattr(counters, "samples", 32)
    monkeypatch.setattr(counters, "step_marks", [1.0, 2.0, 2.5, 3.0])
    report.write()
    found = json.loads((tmp_path / "trcomp" / "rank-3.json").read_text())
    assert (found["rank"], found["world_size"], found["host"]) == (3, 4, "algo-2")
    assert found["steady_step_seconds"] == 0.5
    assert found["samples_per_step"] == 8
    assert found["samples_per_second"] == 16
    assert found["peak_rss_bytes"] > 1e6
    assert {"python", "torch", "trcomp"} <= set(found["versions"])
    counted = {"steps", "compiles", "cache_hits", "executions", "recorded_nodes", "early_syncs"}
    timed = {"record_seconds", "compile_seconds", "run_seconds", "input_wait_seconds"}
    assert counted | timed | {"fallbacks", "first_step_seconds"} <= set(found)


def test_a_report_that_cannot_be_written_is_told_of_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRCOMP_REPORT_DIR", str(tmp_path))
    monkeypatch.setattr(counters, "steps", 1)
    (tmp_path / "rank-0.json").mkdir()
    report.write()
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0.json"]
    assert "[trcomp] The report rank-0.json cannot be written" in capsys.readouterr().err


def test_a_loaders_worker_does_not_replace_the_ranks_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRCOMP_REPORT_DIR", str(tmp_path))
    monkeypatch.setattr(counters, "steps", 0)
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object())
    report.write()
    assert not list(tmp_path.iterdir())


def test_a_worker_writes_it_as_it_ends_and_a_parent_of_ranks_leaves_that_to_them(
    tmp_path: Path,
) -> None:
    script = """
    import torch
    import trcomp.runtime as rt
    from trcomp.runtime.launch import spawn

    def fn(index):
        for batch in rt.DeviceLoader([torch.ones(4)] * 3):
            pass

    if __name__ == "__main__":
        spawn(fn)
    """
    environ = {
        "TRCOMP_ENABLED": "0",
        "TRCOMP_WORKER": "1",
        "GPU_NUM_DEVICES": "2",
        "TRCOMP_REPORT_DIR": str(tmp_path / "reports"),
    }
    ended = run_script(script, tmp_path, environ)
    assert ended.returncode == 0, ended.stderr
    for rank in (0, 1):
        found = json.loads((tmp_path / "reports" / f"rank-{rank}.json").read_text())
        assert (found["rank"], found["world_size"], found["steps"]) == (rank, 2, 3)
        assert found["samples_per_step"] == 4
