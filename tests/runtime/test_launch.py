"""Starting ranks from inside a script: places, counts, environment, lines, the first failure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from tests.runtime.rank_scripts import run_script
from trcomp.env.topology import uniform
from trcomp.errors import DeviceError, SpecError, UnsupportedError
from trcomp.runtime import launch

pytestmark = pytest.mark.runtime

PLAIN_TWO = {"TRCOMP_ENABLED": "0", "GPU_NUM_DEVICES": "2"}

HEAD = """
    import os, sys, time
    import torch
    import trcomp.runtime as rt
    from trcomp.runtime.launch import spawn
"""


def script(body: str, call: str = "spawn(fn)") -> str:
    return f'{HEAD}{body}\n\n    if __name__ == "__main__":\n        {call}\n'


@pytest.fixture
def outside_a_job(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TRCOMP_TOPOLOGY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GPU_NUM_DEVICES", "2")
    return monkeypatch


# In place.


def test_in_a_rank_the_function_is_called_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    calls: list[tuple[int, str, int]] = []

    def fn(index: int, word: str) -> None:
        calls.append((index, word, os.getpid()))

    for nprocs in (None, 1, 4):
        assert launch.spawn(fn, ("x",), nprocs) is None
    handle = launch.spawn(fn, ("x",), join=False)
    assert handle is not None
    handle.join()
    assert calls == [(1, "x", os.getpid())] * 4
    with pytest.raises(DeviceError, match="nprocs=8, but this host has 4 devices"):
        launch.spawn(fn, ("x",), 8)


def test_one_process_of_several_devices_runs_in_place(outside_a_job: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    launch.spawn(calls.append, nprocs=1)
    assert calls == [0]


# What does not fit.


def test_nprocs_that_does_not_fit_names_both_numbers(outside_a_job: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match="nprocs=8, but this host has 2 devices") as caught:
        launch.spawn(print, nprocs=8)
    assert "--devices 8" in str(caught.value)


def test_the_jobs_topology_says_how_many_devices(outside_a_job: pytest.MonkeyPatch) -> None:
    topology = uniform(["algo-1", "algo-2"], 3, "cpu")
    outside_a_job.setenv("TRCOMP_TOPOLOGY", topology.to_json())
    outside_a_job.setenv("TRCOMP_HOST_INDEX", "1")
    with pytest.raises(DeviceError, match="nprocs=2, but this host has 3 devices"):
        launch.spawn(print, nprocs=2)
    environments = launch.environments(topology, 1)
    assert [environ["RANK"] for environ in environments] == ["3", "4", "5"]
    assert {environ["TRCOMP_COORDINATOR"] for environ in environments} == {topology.coordinator}


def test_a_forked_start_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="start_method='fork'"):
        launch.spawn(print, start_method="fork")


def test_a_number_of_devices_that_is_none_is_refused(outside_a_job: pytest.MonkeyPatch) -> None:
    outside_a_job.setenv("GPU_NUM_DEVICES", "two")
    with pytest.raises(SpecError, match="GPU_NUM_DEVICES"):
        launch.spawn(print)


def test_a_process_that_has_used_the_device_cannot_start_ranks(
    outside_a_job: pytest.MonkeyPatch,
) -> None:
    torch.ones(1, device="xla").item()
    with pytest.raises(DeviceError, match="has used the xla device"):
        launch.spawn(print)


# Processes.


def test_ranks_have_their_places_their_environment_and_their_prefix(tmp_path: Path) -> None:
    body = """
    print("at import", os.environ.get("RANK"), flush=True)

    def fn(index, word):
        print("rank", rt.rank(), "of", rt.world_size(), index, word, os.environ["OMP_NUM_THREADS"])
        print("to stderr", file=sys.stderr)
    """
    ended = run_script(script(body, "spawn(fn, ('x',), 2)"), tmp_path, PLAIN_TWO)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == "at import None"
    for rank in (0, 1):
        mine = [line for line in lines if line.startswith(f"[rank {rank}] ")]
        assert mine[0] == f"[rank {rank}] at import {rank}"
        assert mine[1].startswith(f"[rank {rank}] rank {rank} of 2 {rank} x ")
        assert f"[rank {rank}] to stderr" in ended.stderr


def test_the_module_tree_is_there_before_torch_is(tmp_path: Path) -> None:
    text = """
    import trcomp.compat
    if __name__ == "__main__":
        trcomp.compat.install()
    import torch_xla.core.xla_model as xm
    import torch_xla.distributed.xla_multiprocessing as xmp

    def fn(index):
        print("ordinal", xm.get_ordinal(), xm.xla_device())

    if __name__ == "__main__":
        xmp.spawn(fn)
    """
    ended = run_script(text, tmp_path, PLAIN_TWO)
    assert ended.returncode == 0, ended.stderr
    assert {"[rank 0] ordinal 0 cpu", "[rank 1] ordinal 1 cpu"} <= set(ended.stdout.splitlines())


def test_a_ranks_exception_is_raised_here_with_its_traceback_and_stops_its_peer(
    tmp_path: Path,
) -> None:
    body = """
    def fn(index):
        if index == 1:
            raise KeyError("spoilt")
        time.sleep(300)
    """
    call = """try:
            spawn(fn)
        except KeyError as error:
            print("caught", error, type(error.__cause__).__name__)
            assert "in fn" in str(error.__cause__)
            raise"""
    error_file = tmp_path / "error.json"
    environ = {**PLAIN_TWO, "TRCOMP_ERROR_FILE": str(error_file)}
    ended = run_script(script(body, call), tmp_path, environ)
    assert ended.returncode == 1
    assert "caught 'spoilt' RemoteTraceback" in ended.stdout
    assert ended.stderr.rstrip().endswith("KeyError: 'spoilt'")
    assert "[rank 1] KeyError: 'spoilt'" in ended.stderr
    assert '"rank": 1' in error_file.read_text()


def test_an_exception_that_cannot_travel_is_still_told(tmp_path: Path) -> None:
    body = """
    def fn(index):
        class Local(Exception):
            pass
        raise Local("mine")
    """
    ended = run_script(script(body), tmp_path, PLAIN_TWO)
    assert ended.returncode == 1
    assert "RankFailedError: Local: mine" in ended.stderr


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        ("sys.exit(3)", 3, ""),
        ("os.kill(os.getpid(), 9)", 137, "rank 0 was killed by SIGKILL"),
    ],
)
def test_exit_codes_and_signals_of_a_rank(tmp_path: Path, body: str, code: int, told: str) -> None:
    text = f"""
    def fn(index):
        if index == 0:
            {body}
        time.sleep(300)
    """
    ended = run_script(script(text), tmp_path, PLAIN_TWO)
    assert ended.returncode == code, ended.stderr
    assert told in ended.stderr


def test_sigterm_ends_the_ranks_with_their_parent(tmp_path: Path) -> None:
    body = """
    def fn(index):
        print(os.getpid(), flush=True)
        time.sleep(300)
    """
    path = tmp_path / "script.py"
    path.write_text(dedent(script(body)))
    run = subprocess.Popen(
        [sys.executable, str(path)],
        env={**os.environ, **PLAIN_TWO},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    pids = [int(run.stdout.readline().split()[-1]) for _ in range(2)]
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=60)
    assert run.returncode == 143
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
