"""A run that goes on from its checkpoints computes, bit for bit, what one left alone does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trcomp import Estimator, Job, JobFailedError, JobStoppedError, TrainingCompilerConfig, flags

pytestmark = [pytest.mark.e2e, pytest.mark.runtime, pytest.mark.slow]

SCRIPTS = Path(__file__).parent / "scripts"
_LINE = re.compile(r"\[rank (\d)\] (step \d+|weights) (.+)")


class Jobs:
    """Jobs of one script; those of one name share a checkpoint directory."""

    def __init__(self, place: Path, ranks: int, enabled: bool, sharded: bool) -> None:
        self._place = place
        self._config = TrainingCompilerConfig(enabled=enabled)
        self._environment = {"GPU_NUM_DEVICES": str(ranks), flags.GRACE_SECONDS.name: "60"}
        self._environment |= {"SHARDED": "1"} if sharded else {}

    def estimator(self, name: str, max_restarts: int = 0, **arguments: int) -> Estimator:
        return Estimator(
            "checkpointed.py",
            SCRIPTS,
            compiler_config=self._config,
            checkpoint_s3_uri=self._place / name,
            environment=self._environment,
            max_restarts=max_restarts,
            hyperparameters={name.replace("_", "-"): value for name, value in arguments.items()},
        )

    def run(self, name: str, max_restarts: int = 0, **arguments: int) -> list[str]:
        """The lines of a job to its end."""
        estimator = self.estimator(name, max_restarts, **arguments)
        estimator.fit(logs=False)
        assert estimator.latest_training_job is not None
        return list(estimator.latest_training_job.logs())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(flags.HOME.name, str(tmp_path))
    return tmp_path


def computed(lines: list[str]) -> dict[tuple[str, str], str]:
    """Each rank's losses and weights, as printed last."""
    found = (_LINE.fullmatch(line) for line in lines)
    return {(match[1], match[2]): match[3] for match in found if match}


def test_workers_that_are_killed_go_on_from_the_last_checkpoint(home: Path) -> None:
    jobs = Jobs(home, ranks=2, enabled=True, sharded=False)
    whole = computed(jobs.run("whole"))
    lines = jobs.run("killed", max_restarts=1, die_at=5)
    assert computed(lines) == whole
    assert len(whole) == 2 * (10 + 1)
    assert any("was killed by SIGKILL" in line for line in lines)
    # What was saved is not trained again.
    assert sum("[rank 0] step 1 " in line for line in lines) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("ranks", "enabled", "sharded"),
    [(1, True, False), (1, False, False), (2, False, False), (2, True, True), (2, False, True)],
)
def test_other_ways_of_running_and_saving_do_so_too(
    home: Path, ranks: int, enabled: bool, sharded: bool
) -> None:
    jobs = Jobs(home, ranks, enabled, sharded)
    whole = computed(jobs.run("whole"))
    assert computed(jobs.run("killed", max_restarts=1, die_at=5)) == whole
    # One rank alone is told to end: all of them save after the same step.
    with pytest.raises(JobFailedError) as caught:
        jobs.run("told", stop_at=5)
    assert caught.value.exit_code == 143
    first = computed(list(Job.attach(caught.value.handle).logs()))
    rest = computed(jobs.run("told"))
    assert first | rest == whole
    assert len(rest) < len(whole)


@pytest.mark.long
def test_a_stopped_job_saves_and_the_next_one_goes_on(home: Path) -> None:
    jobs = Jobs(home, ranks=2, enabled=False, sharded=False)
    whole = computed(jobs.run("whole"))
    stopped = jobs.estimator("stopped", wait_at=3)
    stopped.fit(wait=False)
    job = stopped.latest_training_job
    assert job is not None
    lines = []
    for line in job.logs(follow=True):
        lines.append(line)
        if sum("step 3 " in line for line in lines) == 2:
            job.stop()
            break
    with pytest.raises(JobStoppedError):
        job.wait(timeout=120)
    lines = list(job.logs())
    saved = [line for line in lines if "told to end by SIGTERM" in line]
    assert len(saved) == 2 and len({line.rpartition(" ")[2] for line in saved}) == 1
    assert computed(lines) | computed(jobs.run("stopped")) == whole
