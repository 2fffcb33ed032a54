"""Runs one row of the fault matrix as a job of processes, and says what became of it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import select
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

from trcomp import Estimator, Job, JobError, SpecError, TrainingCompilerConfig, flags
from trcomp.entrypoint.processes import descendants

_BEGIN = """
    import os, pathlib, sys, time

    rank = os.environ["RANK"]


    def fault_comes():
        # Not before the lines of both ranks are in the log.
        log = pathlib.Path(os.environ["SAGEMAKER_BASE_DIR"]).parents[2] / "logs" / "algo-1.log"
        while not all(f"rank {n}] ready" in log.read_text() for n in range(2)):
            time.sleep(0.01)
        pathlib.Path(os.environ["FAULT_TIME"]).write_text(str(time.monotonic()))


    for place in (os.environ["SM_OUTPUT_DATA_DIR"], os.environ["CHECKPOINTS"]):
        pathlib.Path(place, f"kept-{rank}").write_text("kept")
    print("ready", os.getpid(), flush=True)
"""
"""How each script begins: it leaves something in each place that must outlive the fault."""


@dataclass(frozen=True)
class Row:
    """A fault, and what must become of the job.

    Attributes:
        fault: What happens, in words.
        outcome: The state that the job ends in; "refused" if it must not start.
        exit_code: The job's.
        text: What the first line of the failure text must hold, as a regular expression.
        script: What the ranks do after they are ready.
        act: Brings the fault about from outside, once all ranks are ready.
        around: Is entered while the job runs, and may prepare the scene.
        words: Of the Estimator.
        environment: Of the job.
        after: Looks at the job that has ended, and says what else was not lost.
        most_seconds: From the fault to the end.
        in_ci: Whether `make test` runs it too; `make faults` runs all.
    """

    fault: str
    outcome: str
    exit_code: int
    text: str = ""
    script: str = "time.sleep(600)"
    act: Callable[[Scene, Job], object] | None = None
    around: Callable[[Scene], contextlib.AbstractContextManager[Any]] | None = None
    words: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    after: Callable[[Scene, Job], str] | None = None
    most_seconds: float = 15
    in_ci: bool = False


@dataclass(frozen=True)
class Seen:
    """What became of a row's job.

    Attributes:
        outcome: Its last state, or "refused".
        exit_code: Its exit code.
        text: The first line of its failure text.
        seconds: From the fault to the job's end.
        left: Processes that are left of it, by their commands.
        lost: What the ranks had written before the fault and nobody has any more.
        more: What else was looked at.
    """

    outcome: str
    exit_code: int
    text: str = ""
    seconds: float = 0.0
    left: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    more: str = ""


class Scene:
    """The places of one row."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.code, self.checkpoints = place / "code", place / "checkpoints"
        self.fault_time = place / "fault-time"
        for directory in (self.code, self.checkpoints, place / "home"):
            directory.mkdir()
        self.environment: dict[str, str] = {}
        """More variables of the job."""
        self.words: dict[str, Any] = {}
        """More words of its Estimator."""
        self.name = f"job-{hashlib.sha256(str(place).encode()).hexdigest()[:8]}"
        """The job's, from which its address follows: each row has its own."""
        self.places_lost: set[str] = set()
        """Of these the fault leaves nothing by its nature."""

    def estimator(self, row: Row) -> Estimator:
        """The job of a row."""
        script = dedent(_BEGIN) + dedent(row.script) + "\n"
        (self.code / "train.py").write_text(script)
        words = {"compiler_config": TrainingCompilerConfig(enabled=False)} | dict(row.words)
        words |= self.words
        words.pop("inputs", None)
        own = {
            "GPU_NUM_DEVICES": "2",
            flags.GRACE_SECONDS.name: "5",
            "FAULT_TIME": str(self.fault_time),
            "CHECKPOINTS": str(self.checkpoints),
        }
        environment = own | self.environment | dict(row.environment)
        return Estimator(
            "train.py",
            self.code,
            checkpoint_s3_uri=self.checkpoints,
            environment=environment,
            **words,
        )

    def run(self, row: Row) -> Seen:
        """Run a row's job to its end."""
        with row.around(self) if row.around else contextlib.nullcontext():
            try:
                estimator = self.estimator(row)
                begin = time.monotonic()
                estimator.fit(row.words.get("inputs"), wait=False, job_name=self.name)
            except SpecError as error:
                left = commands(job_processes(self.name))
                return Seen("refused", error.exit_code, first_line(str(error)), left=left)
            job = estimator.latest_training_job
            assert job is not None
            try:
                return self._seen(row, job, begin)
            finally:
                for _ in range(2):
                    job.stop()

    def _seen(self, row: Row, job: Job, begin: float) -> Seen:
        if row.act is not None:
            count = int(row.words.get("instance_count", 1)) * 2
            wait_for_lines(job, "ready", count)
            begin = time.monotonic()
            row.act(self, job)
        code = 0
        try:
            job.wait(timeout=120)
        except JobError as error:
            code = error.exit_code
        end = time.monotonic()
        if self.fault_time.exists():
            begin = float(self.fault_time.read_text())
        record = job.record()
        return Seen(
            outcome=str(record.status),
            exit_code=code,
            text="" if record.failure is None else first_line(record.failure.message),
            seconds=end - begin,
            left=commands(remaining(job.name)),
            lost=tuple(self._lost(job)),
            more="" if row.after is None else row.after(self, job),
        )

    def _lost(self, job: Job) -> Iterator[str]:
        """What ranks had written before and cannot be found."""
        ranks = [str(rank) for rank in range(2)]
        if "log" not in self.places_lost:
            lines = list(job.logs())
            for rank in ranks:
                if not any(f"rank {rank}] ready" in line for line in lines):
                    yield f"rank {rank}'s lines"
        found = _outputs(job)
        for rank in ranks:
            if "output" not in self.places_lost and f"kept-{rank}" not in found:
                yield f"rank {rank}'s output"
            kept = self.checkpoints / f"kept-{rank}"
            if "checkpoint" not in self.places_lost and not kept.exists():
                yield f"rank {rank}'s checkpoint"


def _outputs(job: Job) -> set[str]:
    """Names in the packed output; if nobody was left to pack it, in its directories."""
    record = job.record()
    if record.output is None:
        hosts = record.directory.glob("hosts/*/ml/output/data/*")
        return {path.name for path in hosts}
    with tarfile.open(record.output.removeprefix("file://")) as archive:
        return set(archive.getnames())


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def wait_for_lines(job: Job, word: str, count: int) -> list[str]:
    """Lines with a word, once there are so many."""
    found: list[str] = []
    for line in job.logs(follow=True):
        if word in line:
            found.append(line)
        if len(found) == count:
            return found
    raise AssertionError(f"{job} ended before {count} lines with {word!r}: {list(job.logs())}")


def job_processes(name: str) -> list[int]:
    """Processes whose environment names the job, in whatever session they are."""
    marker = f"TRAINING_JOB_NAME={name}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not entry.name.isdigit() or marker not in (entry / "environ").read_bytes():
                continue
            if "\nState:\tZ" not in (entry / "status").read_text():
                found.append(int(entry.name))
    return found


def remaining(name: str) -> list[int]:
    """Processes that do not end: those that the kernel is just told to kill have a moment."""
    deadline = time.monotonic() + 10
    while (left := job_processes(name)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                descriptor = os.pidfd_open(pid)
                _await_end(descriptor, deadline - time.monotonic())
    return left


def _await_end(descriptor: int, seconds: float) -> None:
    select.select([descriptor], [], [], max(0.0, seconds))
    os.close(descriptor)


def commands(pids: Sequence[int]) -> tuple[str, ...]:
    """What processes run."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            found.append(b" ".join(words).decode(errors="replace").strip())
    return tuple(found)


def entrypoints(job: Job) -> dict[str, int]:
    """The first process of each host."""
    found = {}
    for pid in job_processes(job.name):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            place = re.search(
                r"SAGEMAKER_BASE_DIR=([^\0]*)", Path(f"/proc/{pid}/environ").read_text()
            )
            if "trcomp.entrypoint" in words and place:
                found[Path(place[1]).parent.name] = pid
    return found


def workers(job: Job) -> dict[str, int]:
    """The process of each rank."""
    found = {}
    for pid in job_processes(job.name):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            rank = re.search(r"(?:^|\0)RANK=(\d+)", Path(f"/proc/{pid}/environ").read_text())
            if "trcomp.entrypoint.worker" in words and rank:
                found[rank[1]] = pid
    return found


def whole_host(job: Job, host: str) -> list[int]:
    """All processes of a host."""
    first = entrypoints(job)[host]
    return [first, *descendants(first)]


@contextlib.contextmanager
def small_disk(place: Path, num_bytes: int) -> Iterator[None]:
    """A disk of its own for a directory.

    Raises:
        PermissionError: This user may mount nothing.
    """
    place.mkdir(exist_ok=True)
    size = f"size={num_bytes}"
    command = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True).returncode != 0:
        raise PermissionError("no file system may be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> None:
    """Leave no room on a disk."""
    with contextlib.suppress(OSError), (place / "filler").open("wb") as stream:
        while True:
            stream.write(bytes(4096))
            stream.flush()
