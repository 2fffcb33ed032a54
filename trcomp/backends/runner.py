"""The runner of a job on this machine: starts hosts, watches, keeps the record, packs results.

    python -m trcomp.backends.process_runner < plan.json        (or docker_runner)

It detaches from whoever started it and returns to them once it has taken over the record. SIGTERM
stops the job, SIGQUIT kills it. To it a host is a process, which may stand for a container.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from trcomp import flags, job_page
from trcomp.backends import record, results
from trcomp.backends.base import Failure, JobStatus
from trcomp.backends.local_plan import HostPlan, LocalPlan
from trcomp.backends.record import PAGE, LocalRecord
from trcomp.contract import Paths
from trcomp.entrypoint.processes import adopt_orphans, kill_descendants
from trcomp.errors import TrcompError

STARTED = "started"
"""The file in a host's log directory that its entrypoint makes when its workers run."""

KILL = signal.SIGQUIT
"""The signal that ends a job at once. Two of SIGTERM do so too, if the runner sees both."""

_TICK_SECONDS = 0.05
_MARGIN_SECONDS = 10
"""What a host gets beyond its workers' grace: to kill them, and to write why it failed."""


P = TypeVar("P", bound=LocalPlan)
Given = TypeVar("Given", bound=LocalPlan, contravariant=True)


class HostProcess(Protocol):
    """A host to its runner, which is its parent; a Popen is one."""

    @property
    def pid(self) -> int:
        """The process."""

    def wait(self) -> int:
        """Its exit code, or minus the signal that killed it, once it has ended."""

    def send_signal(self, number: int) -> None:
        """Send it a signal."""


class Hosts(Protocol[Given]):
    """What a job's hosts run in."""

    kill: signal.Signals
    """What ends a host's process at once, with all that it stands for."""

    def open(self, plan: Given) -> None:
        """Make what the hosts share.

        Raises:
            TrcompError: It cannot be made.
        """

    def start(self, plan: Given, host: HostPlan) -> HostProcess:
        """Start a host; what it prints goes to the job's log of that host."""

    def close(self, plan: Given) -> None:
        """End and remove what is left of the job beside its processes."""


class Runner(Generic[P]):
    """One job from Starting to its end."""

    def __init__(self, plan: P, written: LocalRecord, hosts: Hosts[P]) -> None:
        self.plan = plan
        self.record = written
        self.hosts = hosts
        self.running: dict[str, HostProcess] = {}
        self.failed: dict[str, tuple[int, float]] = {}
        """How and when hosts ended that did not end well, the first of them first."""
        self.stop_requests = 0
        self.kill_at: float | None = None
        self._selector = selectors.DefaultSelector()
        self._report: dict[str, Any] = {}

    def take_over(self) -> None:
        """Become the one process that writes the record, and be ready to be stopped."""
        # Orphans of the job come to this process, which can then end them.
        adopt_orphans()
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(reader, selectors.EVENT_READ, None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, KILL):
            signal.signal(number, self._note_stop)
        pid = os.getpid()
        owner = {"runner_pid": pid, "runner_start": record.start_ticks(pid)}
        self._enter(JobStatus.STARTING, **owner)

    def run(self) -> None:
        """Run the job to its end, whatever happens."""
        try:
            self.hosts.open(self.plan)
            for host in self.plan.hosts:
                self._start(host)
            self._watch()
            failure = self.failure()
        except TrcompError as error:
            failure = Failure(message=str(error), exit_code=error.exit_code)
        except Exception as error:
            failure = Failure(
                message=f"A defect of trcomp: {error!r}",
                exit_code=70,
                traceback=traceback.format_exc(),
            )
        finally:
            self._end_all()
        self._finish(failure)

    def _start(self, host: HostPlan) -> None:
        process = self.hosts.start(self.plan, host)
        self.running[host.name] = process
        descriptor = os.pidfd_open(process.pid)
        self._selector.register(descriptor, selectors.EVENT_READ, host.name)

    def _watch(self) -> None:
        while self.running:
            self._note_start()
            for key, _ in self._selector.select(self._timeout()):
                if key.data is None:
                    os.read(key.fd, 64)
                else:
                    self._reap(key.fd, key.data)
            self._obey_stop()
            if self.kill_at is not None and time.monotonic() >= self.kill_at:
                self._signal_all(self.hosts.kill)
                self.kill_at = None
        self._note_start()

    def _note_start(self) -> None:
        logs = self.plan.directory / "logs"
        if self.record.status is JobStatus.STARTING and all(
            (logs / host.name / STARTED).exists() for host in self.plan.hosts
        ):
            self._enter(JobStatus.TRAINING)

    def _timeout(self) -> float | None:
        if self.record.status is JobStatus.STARTING:
            return _TICK_SECONDS
        return None if self.kill_at is None else max(0.0, self.kill_at - time.monotonic())

    def _reap(self, descriptor: int, name: str) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        returncode = self.running.pop(name).wait()
        if returncode == 0:
            return
        self.failed[name] = returncode, time.time()
        if self.kill_at is None:
            self._signal_all(signal.SIGTERM)
            self._set_deadline()

    def _note_stop(self, number: int, frame: object) -> None:
        self.stop_requests += 2 if number == KILL else 1

    def _obey_stop(self) -> None:
        if self.stop_requests == 0 or not self.running:
            return
        if self.record.status is not JobStatus.STOPPING and not self.failed:
            self._enter(JobStatus.STOPPING)
            self._signal_all(signal.SIGTERM)
            self._set_deadline()
        if self.stop_requests > 1:
            self.kill_at = time.monotonic()

    def _set_deadline(self) -> None:
        environments = [os.environ | host.environment for host in self.plan.hosts]
        grace = max(flags.GRACE_SECONDS.get(environment) for environment in environments)
        self.kill_at = time.monotonic() + grace + _MARGIN_SECONDS

    def _signal_all(self, number: signal.Signals) -> None:
        for process in self.running.values():
            process.send_signal(number)

    def _end_all(self) -> None:
        """End every process of the job that is left: hosts, and orphans of killed hosts."""
        self._signal_all(signal.SIGKILL)
        self.running.clear()
        kill_descendants(time.sleep)
        self.hosts.close(self.plan)

    def failure(self) -> Failure | None:
        """The earliest failure: a host may end later than one that it brought down."""
        if not self.failed or self.record.status is JobStatus.STOPPING:
            return None
        roots = {host.name: Paths(host.root) for host in self.plan.hosts}

        def failed_at(name: str) -> float:
            # A host says when its script failed; one that was killed says nothing.
            file = roots[name].failure
            return file.stat().st_mtime if file.exists() else self.failed[name][1]

        name = min(self.failed, key=failed_at)
        logs = self.plan.directory / "logs"
        return results.failure_of(roots[name], logs, name, self.failed[name][0])

    def _finish(self, failure: Failure | None) -> None:
        stopped = self.record.status is JobStatus.STOPPING
        self._enter(JobStatus.UPLOADING)
        try:
            places = self._pack(with_model=failure is None)
        except Exception as error:
            places = {}
            message = f"The results could not be written to {self.plan.output_dir}: {error}"
            failure = failure or Failure(message=message, exit_code=70)
        if failure is not None:
            last = self.record.model_copy(update=places).failed(failure)
        else:
            end = JobStatus.STOPPED if stopped else JobStatus.COMPLETED
            last = self.record.entered(end, **places)
        # Before the record: who waits for the job's end finds its page.
        self._write_page(last)
        self.record = last
        record.write(self.plan.directory, last)

    def _write_page(self, last: LocalRecord) -> None:
        try:
            text = job_page.page(last, self._report, self._lines())
            record.write_private(self.plan.directory / PAGE, text)
        except Exception:  # A job is not lost over its page.
            traceback.print_exc()

    def _lines(self) -> Iterator[str]:
        for host in self.plan.hosts:
            log = self.plan.directory / "logs" / f"{host.name}.log"
            with suppress(OSError), log.open(encoding="utf-8", errors="replace") as lines:
                yield from lines

    def _pack(self, with_model: bool) -> dict[str, str]:
        roots = [Paths(host.root) for host in self.plan.hosts]
        self._report = results.merged_report(self.plan.handle, roots)
        text = json.dumps(self._report, indent=2) + "\n"
        record.write_private(self.plan.directory / "report.json", text)
        directories = {"output": [paths.output_data for paths in roots]}
        if with_model:
            directories["model"] = [paths.model for paths in roots]
        places = {}
        for name, sources in directories.items():
            target = self.plan.output_dir / f"{name}.tar.gz"
            if results.write_archive(target, sources):
                places[name] = f"file://{target}"
        return places

    def _enter(self, status: JobStatus, **changes: Any) -> None:
        self.record = self.record.entered(status, **changes)
        record.write(self.plan.directory, self.record)


def _detached(ready: Callable[[], None], work: Callable[[], None]) -> int:
    """Run work in a process of its own session; return once it has called ready."""
    reader, writer = os.pipe()
    if pid := os.fork():
        os.close(writer)
        if os.read(reader, 1):
            return 0
        os.waitpid(pid, 0)
        return 70
    os.setsid()
    os.close(reader)
    os.chdir("/")
    ready()
    os.write(writer, b".")
    os.close(writer)
    work()
    return 0


def run(plan_class: type[P], hosts: Hosts[P]) -> int:
    """Read the plan from standard input and run its job; gives the exit code."""
    plan = plan_class.model_validate_json(sys.stdin.buffer.read())
    written = record.read(plan.directory)
    if written is None:
        print(f"There is no record in {plan.directory}.", file=sys.stderr)
        return 70
    runner = Runner(plan, written, hosts)
    return _detached(runner.take_over, runner.run)
