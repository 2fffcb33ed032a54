"""Job: a handle on what a job directory says, and what the end of a job means."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trcomp import (
    BackendUnavailableError,
    Estimator,
    Job,
    JobFailedError,
    JobNotFoundError,
    JobRunningError,
    JobStatus,
    JobStoppedError,
    JobTimeoutError,
)
from trcomp.backends import local_jobs, process, record, results
from trcomp.backends.base import Failure
from trcomp.backends.process_runner import ProcessHosts
from trcomp.backends.record import LocalRecord
from trcomp.backends.runner import Runner
from trcomp.contract import Paths
from trcomp.entrypoint import failure
from trcomp.follow import report_rows


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalRecord:
    """A job of two hosts, run by this very process, that has just begun to train."""
    monkeypatch.setenv("TRCOMP_HOME", str(tmp_path))
    directory = tmp_path / "jobs" / "j"
    (directory / "logs").mkdir(parents=True)
    begun = LocalRecord(
        name="j",
        backend="process",
        directory=directory,
        instance_type="local_process",
        hosts=("algo-1", "algo-2"),
        transitions=(),
        runner_pid=os.getpid(),
        runner_start=record.start_ticks(os.getpid()),
    ).entered(JobStatus.TRAINING)
    record.write(directory, begun)
    return begun


def end(job: LocalRecord, status: JobStatus, failure: Failure | None = None) -> None:
    record.write(job.directory, job.entered(status, failure=failure))


def test_status_is_text_too(job: LocalRecord) -> None:
    assert Job.attach("process://j").status() == "Training"
    assert Job.attach("j").handle == "process://j"
    assert Job("j").describe()["transitions"][0]["status"] == "Training"


def test_wait_runs_out_and_the_job_goes_on(job: LocalRecord) -> None:
    with pytest.raises(JobTimeoutError, match="goes on"):
        Job("j").wait(timeout=0)
    assert Job("j").status() == "Training"


def test_completed_stopped_and_failed_are_distinct(job: LocalRecord) -> None:
    end(job, JobStatus.COMPLETED)
    assert Job("j").wait() == "Completed"
    end(job, JobStatus.STOPPED)
    with pytest.raises(JobStoppedError):
        Job("j").wait()
    cause = Failure(
        message="ValueError: bad",
        exit_code=3,
        host="algo-2",
        rank=5,
        traceback="Traceback …",
        last_lines=("a", "b"),
    )
    end(job, JobStatus.FAILED, cause)
    with pytest.raises(JobFailedError) as caught:
        Job("j").wait()
    error = caught.value
    assert (error.exit_code, error.host, error.rank) == (3, "algo-2", 5)
    assert (error.traceback, error.last_lines, error.handle) == (
        "Traceback …",
        ("a", "b"),
        "process://j",
    )
    for part in ("rank 5 on algo-2 failed", "exit code 3", "ValueError: bad", "Traceback …"):
        assert part in str(error)


def test_a_job_whose_runner_died_has_failed(job: LocalRecord) -> None:
    record.write(job.directory, job.model_copy(update={"runner_start": 1}))
    found = Job("j").record()
    assert found.status is JobStatus.FAILED
    assert found.failure is not None
    assert "runner died" in found.failure.message
    Job("j").stop()


def test_an_ended_job_stays_so(job: LocalRecord) -> None:
    end(job, JobStatus.COMPLETED)
    Job("j").stop()
    assert Job("j").status() == "Completed"


def test_only_an_ended_job_is_removed_and_what_it_links_to_stays(
    job: LocalRecord, tmp_path: Path
) -> None:
    with pytest.raises(JobRunningError, match="trcomp stop j"):
        Job("j").remove()
    assert Job("j").status() == "Training"
    data = tmp_path / "data"
    data.mkdir()
    (data / "x").touch()
    (job.directory / "linked").symlink_to(data)
    end(job, JobStatus.COMPLETED)
    Job("j").remove()
    assert not job.directory.exists()
    assert (data / "x").exists()
    with pytest.raises(JobNotFoundError):
        Job("j").remove()


def test_jobs_are_listed_oldest_first(job: LocalRecord) -> None:
    later = job.model_copy(update={"name": "a", "directory": job.directory.with_name("a")})
    later.directory.mkdir()
    record.write(
        later.directory, later.model_copy(update={"transitions": ()}).entered(JobStatus.FAILED)
    )
    (job.directory.parent / "no-job").mkdir()
    assert [found.name for found in process.records()] == ["j", "a"]


def test_a_job_in_preparation_is_left_to_who_prepares_it(
    job: LocalRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_jobs, "_ANSWER_SECONDS", 0)
    record.write(job.directory, job.entered(JobStatus.PREPARING))
    with pytest.raises(BackendUnavailableError, match=str(os.getpid())):
        Job("j").stop()


@pytest.mark.parametrize("handle", ["nope", "process://nope", "process://a/b", "..", ""])
def test_no_such_job(job: LocalRecord, handle: str) -> None:
    with pytest.raises(JobNotFoundError):
        Job.attach(handle)


def test_logs_name_the_host_and_keep_every_line(job: LocalRecord) -> None:
    logs = job.directory / "logs"
    (logs / "algo-1.log").write_bytes(b"[rank 0] a\n[rank 1] \xff\nplain\n")
    (logs / "algo-2.log").write_bytes(b"[trcomp] b\n\n[rank 2] no end")
    end(job, JobStatus.COMPLETED)
    assert list(Job("j").logs()) == [
        "[algo-1 rank 0] a",
        "[algo-1 rank 1] �",
        "[algo-1] plain",
        "[algo-2 trcomp] b",
        "[algo-2] ",
        "[algo-2 rank 2] no end",
    ]
    assert list(Job("j").logs(follow=True)) == list(Job("j").logs())


def test_a_line_that_is_being_written_waits_for_its_end(job: LocalRecord) -> None:
    log = job.directory / "logs" / "algo-1.log"
    log.write_text("whole\nhal")
    lines, cursor = Job("j").read_logs({})
    assert lines == ["[algo-1] whole"]
    log.write_text("whole\nhalf\n")
    assert Job("j").read_logs(cursor)[0] == ["[algo-1] half"]


def test_logs_longer_than_one_read(job: LocalRecord) -> None:
    log = job.directory / "logs" / "algo-1.log"
    lines = [f"{number:07d}" for number in range(300_000)]
    log.write_text("\n".join(lines) + "\n" + "x" * 3_000_000)
    end(job, JobStatus.COMPLETED)
    read = [line.removeprefix("[algo-1] ") for line in Job("j").logs()]
    assert read[: len(lines)] == lines
    assert "".join(read[len(lines) :]) == "x" * 3_000_000


def test_logs_of_many_hosts_are_read_in_parts_that_lose_nothing(
    job: LocalRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_jobs, "_BYTES_AT_ONCE", 100)
    hosts = tuple(f"algo-{n}" for n in range(1, 31))
    record.write(job.directory, job.model_copy(update={"hosts": hosts}))
    for host in hosts:
        (job.directory / "logs" / f"{host}.log").write_text(f"of {host}, thirty letters and more\n")
    lines, cursor = Job("j").read_logs({})
    assert 0 < len(lines) < 10
    # Who has printed more waits until the others have been read.
    with (job.directory / "logs" / "algo-1.log").open("a") as log:
        log.write("more\n")
    new = lines
    while new:
        new, cursor = Job("j").read_logs(cursor)
        lines = lines + new
    assert lines[-1] == "[algo-1] more"
    assert lines[:-1] == [f"[{host}] of {host}, thirty letters and more" for host in hosts]


def test_of_many_ranks_the_report_keeps_the_course_of_those_that_stand_out() -> None:
    def text(number: int) -> bytes:
        timeline = {"steps": [], "compiles": [], "memory": [[0.5, number]]}
        said = {"rank": number, "steps": 5, "steady_step_seconds": 0.1, "timeline": timeline}
        said |= {"steady_step_seconds": 7.0} if number == 600 else {}
        return json.dumps(said).encode()

    found = results.report_of("process://j", (text(number) for number in reversed(range(1000))))
    assert [one["rank"] for one in found["ranks"]] == list(range(1000))
    assert found["totals"]["steady_step_seconds"] == 7.0
    kept = [one["rank"] for one in found["ranks"] if one["timeline"] is not None]
    assert len(kept) == 16 and {0, 600} <= set(kept)
    few = results.report_of("process://j", map(text, range(128)))
    assert all(one["timeline"] is not None for one in few["ranks"])


def test_the_report_adds_up_what_adds_up(job: LocalRecord) -> None:
    for rank, host in enumerate(job.hosts):
        data = Paths(job.directory / "hosts" / host / "ml").output_data / "trcomp"
        data.mkdir(parents=True)
        (data / f"rank-{rank}.json").write_text(
            f'{{"rank": {rank}, "steps": 10, "steady_step_seconds": 0.{rank + 1}, '
            f'"samples_per_second": 10.0, "fallbacks": {{"op": 2}}, "first_step_seconds": null}}'
        )
    (data / "rank-9.json").write_text("{half")
    report = Job("j").report()
    assert report["totals"] == {
        "num_ranks": 2,
        "steps": 10,
        "steady_step_seconds": 0.2,
        "samples_per_second": 20.0,
        "fallbacks": {"op": 4},
    }
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]


def test_workers_that_left_no_measurements_are_counted() -> None:
    text = json.dumps({"rank": 0, "world_size": 4, "steps": 3}).encode()
    rows = dict(report_rows(results.report_of("process://j", [text])["totals"]))
    assert rows["workers"] == "4, of which 1 left measurements"


def test_of_several_hosts_the_earliest_failure_is_blamed(job: LocalRecord) -> None:
    plan = Estimator(__file__, instance_count=2).plan(job_name="j")
    runner = Runner(plan, job, ProcessHosts())
    for host, time in zip(plan.hosts, (9, 3), strict=True):
        failure.write(Paths(host.root).failure, f"Error of {host.name}\n", time)
        runner.failed[host.name] = 1, 10.0
    found = runner.failure()
    assert found is not None
    assert found.message == "Error of algo-2"


@pytest.mark.parametrize(
    ("text", "returncode", "expected"),
    [
        (
            "ValueError: x\nrank 3 on host algo-2, exit code 4\n\nTrace\n",
            4,
            (3, "algo-2", 4, "Trace"),
        ),
        ("Broken\nhost algo-1, exit code 78\n\nlong\n", 78, (None, "algo-1", 78, "long")),
        ("The script's own words\nand more\n", 1, (None, "algo-1", 1, "and more")),
        (None, -9, (None, "algo-1", 137, "")),
    ],
)
def test_the_cause_of_a_failure_is_read_from_its_file(
    tmp_path: Path, text: str | None, returncode: int, expected: tuple[object, ...]
) -> None:
    paths = Paths(tmp_path)
    paths.output.mkdir()
    if text is not None:
        paths.failure.write_text(text)
    found = results.failure_of(paths, tmp_path, "algo-1", returncode)
    assert (found.rank, found.host, found.exit_code, found.traceback) == expected
