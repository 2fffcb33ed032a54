"""Jobs on this machine, whatever runs them: begun, looked at, stopped, removed by any process.

    $TRCOMP_HOME/jobs/NAME/
      job.json  plan.json             the record, and the request with its secrets masked
      hosts/HOST/ml/                  the whole /opt/ml tree of one host
      logs/HOST.log                   what the host printed, each line with its rank
      logs/HOST/rank-N.log            what one worker printed
      output/  report.json            model.tar.gz and output.tar.gz; what the workers measured

`begin` prepares the directory and starts a runner (runner.py) that outlives this process and is the
only one to write the record from then on; everyone else reads. The backends share the directories,
so a name is one job's.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trcomp import contract, flags, reserve
from trcomp.backends import record, results, s3_inputs
from trcomp.backends.base import Cursor, Failure, JobStatus, with_host
from trcomp.backends.directory import jobs_directory, remove_tree
from trcomp.backends.local_plan import LocalPlan
from trcomp.backends.record import LocalRecord
from trcomp.backends.runner import KILL
from trcomp.backends.s3_inputs import Object
from trcomp.backends.settings import metric_definitions
from trcomp.env import variables
from trcomp.errors import (
    BackendUnavailableError,
    InternalError,
    JobNotFoundError,
    JobRunningError,
    Problem,
    SpecError,
)

_ANSWER_SECONDS = 10
_CHUNK_BYTES = 1 << 20
_BYTES_AT_ONCE = 1 << 24
"""Of the logs of all hosts together: a job's is not read into memory all at once."""

Settle = Callable[[LocalRecord], bool]
"""Ends what is left of a job whose runner has died; False while something still ends by itself."""


def begin(plan: LocalPlan, prepare: Callable[[LocalPlan, Sequence[Object]], None]) -> None:
    """Make the job's directory, fill it, start the runner and return.

    Args:
        plan: The job.
        prepare: Writes all that its hosts find, what its channels have in S3 among it.

    Raises:
        SpecError: A job of that name exists.
        BackendUnavailableError: The directory cannot be written, or S3 cannot be read.
        KeyboardInterrupt: If it came in time, nothing runs; else the job does, and can be stopped.
    """
    objects = s3_inputs.listed(plan)
    _make_directory(plan)
    prepared = first_record(plan)
    try:
        record.write(plan.directory, prepared)
        reserve.keep(plan.directory)
        prepare(plan, objects)
    except KeyboardInterrupt:
        stopped = prepared.entered(JobStatus.STOPPED, "Interrupted while it was prepared.")
        record.write(plan.directory, stopped)
        raise
    except BackendUnavailableError as error:
        _give_up(plan, prepared, str(error))
        raise
    except OSError as error:
        message = f"The job could not be prepared: {error}"
        _give_up(plan, prepared, message)
        raise BackendUnavailableError(
            message, f"{flags.HOME.name} may name a place with more room."
        ) from error
    with _interrupts_deferred():
        launch(plan, prepared, inherited(os.environ))


def launch(plan: LocalPlan, prepared: LocalRecord, environ: Mapping[str, str]) -> None:
    """Start the runner of a job whose directory holds all that its hosts need.

    Args:
        plan: The job.
        prepared: Its record so far, which the runner takes over.
        environ: What the hosts get beside what the plan gives them.

    Raises:
        InternalError: The runner did not start.
    """
    if not _start_runner(plan, environ):
        log = plan.directory / "runner.log"
        _give_up(plan, prepared, "The job's runner did not start.")
        raise InternalError(f"The job's runner did not start; see {log}.")


def describe(backend: str, name: str, settle: Settle = lambda found: True) -> LocalRecord:
    """The job's record as true now.

    Args:
        backend: What runs the job.
        name: The job.
        settle: Asked to end what is left of the job if its runner has died.

    Raises:
        JobNotFoundError: That backend has no job of the name.
    """
    directory = jobs_directory() / name
    found = record.read(directory)
    if found is None or found.backend != backend:
        other = f"; there is {found.handle}" if found is not None else ""
        raise JobNotFoundError(
            f"There is no job {backend}://{name} in {directory.parent}{other}.",
            f"{backend}://{name}",
            "`trcomp list` shows the jobs; TRCOMP_HOME says where they are kept.",
        )
    if found.status.ended or found.runner_alive:
        return found
    # The runner may have written how the job ended between the two looks: read once more.
    found = record.read(directory) or found
    if found.status.ended or not settle(found):
        return found
    ended = found.abandoned()
    with suppress(OSError):  # Who may only read sees the same.
        record.write(directory, ended)
    return ended


def read_logs(found: LocalRecord, cursor: Cursor, final: bool) -> tuple[list[str], Cursor]:
    """The whole lines after a cursor, host by host; with several hosts each line names its host.

    Of many hosts that have printed much some are read, and the others next time: the cursor holds
    hosts in the order in which they were read.
    """
    lines: list[str] = []
    following = dict(cursor)
    num_bytes = 0
    for host in [*(host for host in found.hosts if host not in cursor), *cursor]:
        path, begin = found.directory / "logs" / f"{host}.log", following.pop(host, 0)
        text, following[host] = _read_lines(path, begin, final)
        lines += [with_host(host, line) if len(found.hosts) > 1 else line for line in text]
        num_bytes += following[host] - begin
        if num_bytes >= _BYTES_AT_ONCE:
            break
    return lines, following


def stop(describe: Callable[[], LocalRecord]) -> None:
    """Ask the job's runner to stop it; a second call kills it. A job that has ended stays so.

    Returns when the runner has heard: signals do not queue, and a second would be lost.
    """
    # While a job is prepared its owner is the submitting process, which is not ours to signal.
    found = _until_not(describe, {JobStatus.PREPARING})
    if found.status is JobStatus.PREPARING:
        raise BackendUnavailableError(
            f"{found.handle} is still being prepared by process {found.runner_pid}.",
            "Interrupt that process (Ctrl-C), or try again.",
        )
    if found.status.ended or found.runner_pid is None:
        return
    number = KILL if found.status is JobStatus.STOPPING else signal.SIGTERM
    with suppress(ProcessLookupError):
        # The descriptor holds this very process: a pid that is used again is not hit.
        descriptor = os.pidfd_open(found.runner_pid)
        try:
            if found.runner_alive:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
    _until_not(describe, {JobStatus.STARTING, JobStatus.TRAINING})


def remove(found: LocalRecord) -> None:
    """Delete the directory of a job that has ended, with all that it holds.

    Raises:
        JobRunningError: The job has not ended.
        BackendUnavailableError: Something cannot be deleted.
    """
    if not found.status.ended:
        raise JobRunningError(
            f"{found.handle} is {found.status}: only a job that has ended can be removed.",
            found.handle,
            f"`trcomp stop {found.typed}` ends it.",
        )
    remove_tree(found.directory)


def report(found: LocalRecord) -> dict[str, Any]:
    """What the job's workers have measured so far."""
    return results.merged_report(found.handle, _roots(found))


def download(found: LocalRecord, directory: Path, which: Collection[str]) -> list[Path]:
    """Copy the job's results into a directory."""
    written = []
    for kind, uri in (("model", found.model), ("output", found.output)):
        if uri is not None and kind in which:
            directory.mkdir(parents=True, exist_ok=True)
            source = Path(uri.removeprefix("file://"))
            written.append(Path(shutil.copy(source, directory / source.name)))
    return written


def records(backend: str, describe: Callable[[str], LocalRecord]) -> list[LocalRecord]:
    """The records of a backend's jobs, oldest first."""
    found = []
    for path in jobs_directory().glob(f"*/{record.FILE}"):
        with suppress(JobNotFoundError):  # removed since it was seen, or another backend's
            found.append(describe(path.parent.name))
    return sorted(found, key=lambda job: job.transitions[0].time)


def _until_not(describe: Callable[[], LocalRecord], states: set[JobStatus]) -> LocalRecord:
    """The record once the job has left these states, or after a while."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    while (found := describe()).status in states and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def _make_directory(plan: LocalPlan) -> None:
    try:
        plan.directory.mkdir(parents=True, mode=0o700)
    except FileExistsError:
        there = record.read(plan.directory)
        typed = plan.job_name if there is None else there.typed
        problem = Problem("job_name", plan.job_name, f"{plan.directory} holds a job of that name.")
        raise SpecError([problem], f"Choose another name, or `trcomp remove {typed}`.") from None
    except OSError as error:
        raise BackendUnavailableError(
            f"The job's directory cannot be made: {error}.",
            f"Set {flags.HOME.name} to a directory that you can write to.",
        ) from error


def _give_up(plan: LocalPlan, prepared: LocalRecord, message: str) -> None:
    with suppress(OSError):
        failure = Failure(message=message, exit_code=70)
        record.write(plan.directory, prepared.failed(failure))


def first_record(plan: LocalPlan) -> LocalRecord:
    """The record of a job that is being prepared by this process."""
    # Until the runner takes over, the job lives as long as the process that prepares it.
    return LocalRecord(
        name=plan.job_name,
        backend=plan.backend,
        directory=plan.directory,
        instance_type=plan.spec.instance_type,
        hosts=tuple(host.name for host in plan.hosts),
        transitions=(),
        metric_definitions=metric_definitions(plan.spec),
        runner_pid=os.getpid(),
        runner_start=record.start_ticks(os.getpid()),
    ).entered(JobStatus.PREPARING)


def _start_runner(plan: LocalPlan, environ: Mapping[str, str]) -> bool:
    with (plan.directory / "runner.log").open("wb") as stream:
        # The plan goes through a pipe: its environment may hold secrets, which stay off the disk.
        started = subprocess.run(
            [sys.executable, "-P", "-m", plan.RUNNER],
            input=plan.model_dump_json().encode(),
            env=environ,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
            check=False,
        )
    return started.returncode == 0


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Let Ctrl-C wait until there is a runner that can be stopped, or none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if received:
        signal.raise_signal(signal.SIGINT)


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """What a job takes over from whoever submits it: all but what describes an enclosing job."""
    enclosing = {flag.name for flag in flags.JOB_ONLY} | variables.JOB_ONLY
    return {
        name: value
        for name, value in environ.items()
        if name not in enclosing and not contract.is_job_variable(name)
    }


def _roots(found: LocalRecord) -> list[contract.Paths]:
    return [contract.Paths(found.directory / "hosts" / host / "ml") for host in found.hosts]


def _read_lines(path: Path, offset: int, final: bool) -> tuple[list[str], int]:
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            data = stream.read(_CHUNK_BYTES)
    except FileNotFoundError:
        return [], offset
    full = len(data) == _CHUNK_BYTES
    whole = data.rfind(b"\n") + 1
    # A line without its end is a line if nothing can follow, or if it is endless.
    if not (final and not full) and not (full and whole == 0):
        data = data[:whole]
    lines = data.decode(errors="replace").split("\n")
    return lines[:-1] if not lines[-1] else lines, offset + len(data)
