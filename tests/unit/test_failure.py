"""Who is blamed, and what the failure file says."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from trcomp import error_file
from trcomp.entrypoint.failure import Failure, blamed, exit_code, write
from trcomp.entrypoint.supervisor import Exit, Outcome, Worker
from trcomp.entrypoint.watchdog import Stall


class Ends:
    """Makes workers' ends; a worker with an error has written it at that time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(
        self,
        rank: int,
        returncode: int,
        at: float,
        *,
        told: bool = False,
        error_at: float | None = None,
        code: int = 1,
        tail: bytes = b"",
        exception: str = "",
    ) -> Exit:
        path = self.directory / f"rank-{rank}.json"
        if error_at is not None:
            report = {"time": error_at, "rank": rank, "host": "algo-1"}
            report |= {
                "exception": exception or f"ValueError: {rank}",
                "traceback": "Traceback: ...",
                "exit_code": code,
            }
            path.write_text(json.dumps(report))
        worker = Worker(rank, ("x",), {}, self.directory, error_file=path)
        return Exit(worker, returncode, at, told, tail)


@pytest.fixture
def end(tmp_path: Path) -> Ends:
    return Ends(tmp_path)


def test_nobody_failed(end: Ends) -> None:
    assert blamed(Outcome((end(0, 0, 1), end(1, 0, 2))), "algo-1") is None


def test_the_earliest_error_is_blamed_not_the_earliest_end(end: Ends) -> None:
    exits = (end(0, 1, at=5, error_at=4), end(1, 1, at=9, told=True, error_at=3))
    failure = blamed(Outcome(exits), "algo-1")
    assert failure is not None
    assert (failure.rank, failure.exception, failure.exit_code) == (1, "ValueError: 1", 1)


def test_a_peer_that_dies_of_anothers_error_is_not_blamed(end: Ends) -> None:
    exits = (end(0, -6, at=5), end(1, -15, at=9, told=True, error_at=3))
    failure = blamed(Outcome(exits), "algo-1")
    assert failure is not None
    # It had raised before it was told to stop: the signal is not its exit code.
    assert (failure.rank, failure.exit_code) == (1, 1)


def test_who_exits_keeps_the_code_though_it_was_told_to_stop_meanwhile(end: Ends) -> None:
    exits = (end(0, 143, at=5, error_at=4, code=143), end(1, -15, 9, told=True, error_at=3, code=3))
    failure = blamed(Outcome(exits), "algo-1")
    assert failure is not None
    assert (failure.rank, failure.exit_code) == (1, 3)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("The following tasks are unhealthy (stopped sending heartbeats):\n9\n", "Rank 9 is"),
        (
            "unhealthy (stopped sending heartbeats):\n9\n17\nThe tasks have crashed. 3 of\n",
            "Ranks 9, 17 are",
        ),
        (
            "RPC: /xla.coordination.CoordinationService/Heartbeat\n",
            "Rank 0, through which the ranks meet, is",
        ),
    ],
)
def test_a_rank_that_jax_aborted_says_which_other_is_silent(
    end: Ends, words: str, sentence: str
) -> None:
    jax = (
        "F1201 07:50:11.383096 15457 client.h:80] Terminating process because the JAX distributed "
        f"service detected fatal errors. absl::Status: UNAVAILABLE: {words}"
        "*** Check failure stack trace: ***\n    @ 0x7f0191e58634\n"
    )
    aborted = blamed(Outcome((end(3, -signal.SIGABRT, at=5, tail=jax.encode()),)), "algo-1")
    assert aborted is not None
    assert aborted.exception.startswith(f"{sentence} not heard of any more: the process has died")
    assert aborted.text.splitlines()[1] == "rank 3 on host algo-1, exit code 134"
    # Any other reason is not taken for it.
    other = blamed(Outcome((end(3, -signal.SIGABRT, at=5, tail=words.encode()),)), "algo-1")
    assert other is not None and other.exception == "The script was killed by SIGABRT"


def test_a_connection_to_a_rank_that_has_ended_says_that_steps_differ(end: Ends) -> None:
    closed = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:1961"
    exits = (end(0, 0, at=4), end(1, 1, at=5, error_at=4.5, exception=closed))
    uneven = blamed(Outcome(exits), "algo-1")
    assert uneven is not None and uneven.exception == closed
    assert "The script of rank 0 had ended before, and rank 1 had more to do" in uneven.details
    assert uneven.details.endswith("Traceback: ...")
    # One that was told to stop, or failed itself, has nothing to do with it.
    for first in (end(0, 0, at=5, told=True), end(0, 1, at=6)):
        other = blamed(Outcome((first, exits[1])), "algo-1")
        assert other is not None and other.details == "Traceback: ..."
    another = blamed(Outcome((exits[0], end(1, 1, at=5, error_at=4.5))), "algo-1")
    assert another is not None and another.details == "Traceback: ..."


def test_who_was_told_to_stop_is_not_blamed(end: Ends) -> None:
    exits = (end(0, 3, at=5), end(1, -15, at=6, told=True), end(2, 1, at=7, told=True, error_at=6))
    failure = blamed(Outcome(exits), "algo-1")
    assert failure is not None
    assert (failure.rank, failure.exit_code) == (0, 3)
    assert failure.exception == "The script ended with exit code 3"


def test_a_stopped_job_has_no_failure(end: Ends) -> None:
    assert blamed(Outcome((end(0, -15, at=5, told=True),), signal=15), "algo-1") is None


def test_who_failed_before_the_host_was_stopped_is_blamed_still(end: Ends) -> None:
    exits = (
        end(0, 1, at=9, told=True, error_at=8),
        end(1, -15, at=9, told=True, error_at=4),
        end(2, -15, at=9, told=True),
    )
    failure = blamed(Outcome(exits, signal=15, signal_time=5), "algo-1")
    assert failure is not None
    assert (failure.rank, failure.exit_code) == (1, 1)
    assert blamed(Outcome(exits, signal=15, signal_time=3), "algo-1") is None


def test_an_end_without_an_exception_shows_the_last_lines(end: Ends) -> None:
    tail = b"".join(b"line %d\n" % n for n in range(100))
    failure = blamed(Outcome((end(0, -9, at=5, tail=tail),)), "algo-1")
    assert failure is not None
    head, who, blank, *details = failure.text.splitlines()
    assert head.startswith("The script was killed by SIGKILL")
    assert who == "rank 0 on host algo-1, exit code 137"
    assert not blank
    assert details[1:] == [f"line {n}" for n in range(80, 100)]


def test_a_rank_that_the_script_started_is_named(end: Ends, tmp_path: Path) -> None:
    ended = end(3, 1, at=5, error_at=4)
    host = Worker(None, ("x",), {}, tmp_path, error_file=ended.worker.error_file)
    failure = blamed(Outcome((Exit(host, 1, 5, False, b""),)), "algo-1")
    assert failure is not None
    assert failure.rank == 3


def test_who_failed_first_does_not_change_with_the_clock(
    end: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = end(0, 1, at=0), end(1, 1, at=0)
    for ended, clock in ((first, 9000.0), (second, 5000.0)):
        # Somebody has set the clock back meanwhile.
        monkeypatch.setattr(time, "time", lambda clock=clock: clock)
        path = ended.worker.error_file
        assert path is not None
        error_file.write(path, ValueError(), rank=ended.worker.rank, host="algo-1")
    failure = blamed(Outcome((first, second)), "algo-1")
    assert failure is not None and failure.rank == 0
    # Files of several hosts are compared as the clock now is.
    assert failure.file_time == pytest.approx(5000, abs=60)


def test_rank_and_host_are_within_what_sagemaker_shows() -> None:
    failure = Failure("ValueError: " + "x" * 5000 + "\nmore", 1, "algo-1", 1, "Traceback", 0.0)
    assert "rank 1 on host algo-1, exit code 1" in failure.text[:1024]


@pytest.mark.parametrize(("returncode", "code"), [(0, 0), (3, 3), (-9, 137), (-15, 143)])
def test_exit_codes_are_a_shells(returncode: int, code: int) -> None:
    assert exit_code(returncode) == code


def test_a_script_s_own_failure_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "output/failure"
    write(path, "ours\n")
    assert path.read_text() == "ours\n"
    path.write_text("its own")
    write(path, "ours\n")
    assert path.read_text() == "its own"


def test_the_file_s_time_is_that_of_the_failure(end: Ends, tmp_path: Path) -> None:
    failure = blamed(Outcome((end(0, 1, at=9, error_at=3),)), "algo-1")
    assert failure is not None
    path = tmp_path / "output/failure"
    write(path, failure.text, failure.time)
    assert path.stat().st_mtime == 3


def test_the_first_error_stays(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    for rank, error in enumerate((ValueError("first\nsecond line"), KeyError("later"))):
        try:
            raise error
        except Exception as raised:
            error_file.write(path, raised, rank=rank, host="algo-1")
    report = error_file.read(path)
    assert report is not None
    assert (report.rank, report.host) == (0, "algo-1")
    assert report.exception == "ValueError: first\nsecond line"
    assert "test_the_first_error_stays" in report.traceback
    assert [entry.name for entry in tmp_path.iterdir()] == ["error.json"]


def test_an_error_that_cannot_be_written_is_no_second_error(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "error.json"
    error_file.write(path, ValueError("x"), rank=0, host="algo-1")
    assert error_file.read(path) is None
    (tmp_path / "broken.json").write_text("{")
    assert error_file.read(tmp_path / "broken.json") is None


def test_a_rank_that_hangs_is_blamed_unless_another_had_failed_before(end: Ends) -> None:
    stall = Stall(1, "Rank 1 has made no progress for 600 s.", "rank 1: 3 steps", time=50.0)
    told = end(1, -15, 60.0, told=True)
    failed = blamed(Outcome((told,), stall=stall), "algo-1")
    assert failed is not None
    assert (failed.rank, failed.exit_code, failed.time) == (1, 124, 50.0)
    assert failed.text.startswith("Rank 1 has made no progress for 600 s.\nrank 1 on host algo-1")
    before = end(0, 1, 60.0, error_at=40.0, told=True)
    failed = blamed(Outcome((before, told), stall=stall), "algo-1")
    assert failed is not None and failed.exception == "ValueError: 0"
