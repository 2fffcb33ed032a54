"""A rank that makes no step any more ends the job, which says where each rank was."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trcomp import Estimator, JobFailedError, TrainingCompilerConfig, flags

pytestmark = [pytest.mark.e2e, pytest.mark.runtime]

SCRIPTS = Path(__file__).parent / "scripts"
_SECONDS = "4"


def _hangs(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobFailedError:
    monkeypatch.setenv(flags.HOME.name, str(tmp_path))
    estimator = Estimator(
        "one_rank_hangs.py",
        SCRIPTS,
        compiler_config=TrainingCompilerConfig(),
        environment={
            "GPU_NUM_DEVICES": "2",
            flags.WATCHDOG_SECONDS.name: _SECONDS,
            flags.GRACE_SECONDS.name: "2",
        },
        hyperparameters={"how": how},
    )
    with pytest.raises(JobFailedError) as caught:
        estimator.fit()
    return caught.value


def test_a_rank_that_waits_for_nobody_is_shown_at_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = _hangs("waits", tmp_path, monkeypatch)
    assert (error.rank, error.host, error.exit_code) == (1, "algo-1", 124)
    source = (SCRIPTS / "one_rank_hangs.py").read_text().splitlines()
    line = 1 + source.index("    threading.Event().wait()")
    shown = rf"Rank 1 has made no progress for \d+ s, at one_rank_hangs\.py:{line}\."
    assert re.search(shown, str(error))
    assert "in wait_for_nobody" in error.traceback
    # The other one waits in the step that this one does not make.
    assert "rank 0: 3 steps" in error.traceback and "all_reduce" in error.traceback
    assert f"{flags.WATCHDOG_SECONDS.name} says how long" in error.traceback


@pytest.mark.long
def test_a_stopped_process_has_no_stack_to_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = _hangs("is stopped", tmp_path, monkeypatch)
    assert (error.rank, error.exit_code) == (1, 124)
    assert "It shows no stack: it is stopped." in error.traceback


def test_ranks_that_make_different_numbers_of_steps_are_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = _hangs("ends early", tmp_path, monkeypatch)
    assert (error.rank, error.exit_code) == (0, 124)
    assert "The script of rank 1 has ended" in str(error)
    assert "give each as many batches" in str(error)


def test_so_are_ranks_of_a_job_without_xla(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo's own words speak of a worker that crashed."""
    monkeypatch.setenv(flags.HOME.name, str(tmp_path))
    estimator = Estimator(
        "uneven_steps.py",
        SCRIPTS,
        compiler_config=TrainingCompilerConfig(enabled=False),
        environment={"GPU_NUM_DEVICES": "2"},
    )
    with pytest.raises(JobFailedError) as caught:
        estimator.fit()
    assert caught.value.rank == 1
    assert "The script of rank 0 had ended before" in str(caught.value)


def test_a_rank_that_is_ended_shows_the_script_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is its watcher that raises, while the main thread waits below what started the script."""
    monkeypatch.setenv(flags.HOME.name, str(tmp_path / "home"))
    source = tmp_path / "source"
    source.mkdir()
    (source / "uneven.py").write_text(
        "import torch, trcomp.runtime as rt\n"
        "for _ in range(3 + rt.rank()):\n"
        "    rt.all_reduce('sum', torch.ones(2, device='xla')).tolist()\n"
    )
    estimator = Estimator(
        "uneven.py",
        source,
        compiler_config=TrainingCompilerConfig(),
        environment={"GPU_NUM_DEVICES": "2"},
    )
    with pytest.raises(JobFailedError) as caught:
        estimator.fit()
    assert "UnevenDataError: Rank 1 waits for rank 0" in str(caught.value)
    assert 'uneven.py", line 3, in <module>' in caught.value.traceback.splitlines()[1]
