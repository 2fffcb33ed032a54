"""A job of thousands of ranks in one process: its runner, supervisors and watchdogs are real.

    Runner --SIGTERM--> 1,000 supervisors, a thread each --SIGTERM--> 8 ranks each, which are fakes

A host is a thread in which the entrypoint trains. A rank is a number, which stands for a process,
and its end of the pipe that the host's pump reads; signals to it and its end come here. Each host
waits for signals of its own where a real one has a process's.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

from trcomp import Estimator, TrainingCompilerConfig, flags, progress
from trcomp.backends import directory, local_jobs, runner
from trcomp.backends.local_plan import HostPlan, LocalPlan
from trcomp.backends.runner import STARTED, Runner
from trcomp.contract import Paths
from trcomp.entrypoint import __main__ as entrypoint
from trcomp.entrypoint import discovery, supervisor
from trcomp.entrypoint.processes import Signals
from trcomp.entrypoint.supervisor import Worker
from trcomp.entrypoint.workers import Site
from trcomp.env.topology import Topology
from trcomp.lines import Console, rank_prefix
from trcomp.progress import Progress

_STACK_BYTES = 1 << 18
_FIRST_PID = 1 << 23
"""Above all that Linux gives."""
_DEADLINE_SECONDS = 120
_LATEST_SECONDS = 0.5
"""How much longer than the first rank that stops others go on, at most."""
_kill, _pidfd_open = os.kill, os.pidfd_open


class _Signals(Signals):
    """A host's own: what is sent to it, and that a rank of it has ended."""

    def __init__(self) -> None:
        super().__init__()
        self._came = threading.Event()

    def wait(self, timeout_seconds: float | None) -> None:
        self._came.wait(timeout_seconds)
        self._came.clear()

    def come(self, number: int) -> None:
        self._note(number, None)
        self._came.set()


class _Rank:
    """A process to its supervisor; it ends as it is told."""

    def __init__(self, host: _Host, pid: int, number: int, pipe: int) -> None:
        self.host, self.pid, self.number = host, pid, number
        self.told_at: float | None = None
        self.returncode: int | None = None
        self._pipe: int | None = os.dup(pipe)

    def kill(self, number: int) -> None:
        """What os.kill does to a process."""
        if self._pipe is None:
            raise ProcessLookupError
        if number == progress.STACKS_SIGNAL:
            text = (
                f'Current thread (most recent call first):\n  File "train.py", line {self.number}'
            )
            progress.stacks_file(self.host.scratch, self.number).write_text(text)
        elif number:
            self.told_at = time.monotonic()
            self.end(-number)

    def end(self, returncode: int) -> None:
        """End, and have the host told."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
            self.host.ended.append((self.pid, returncode))
            self.host.signals.come(signal.SIGCHLD)


class _Host:
    """A host to the runner: a process whose entrypoint trains."""

    def __init__(self, job: _Hosts, plan: HostPlan, pid: int) -> None:
        self.pid, self.scratch = pid, job.scratch / plan.name
        self.signals = _Signals()
        self.ranks: list[_Rank] = []
        self.ended: list[tuple[int, int]] = []
        self.told_at: float | None = None
        self.over = os.eventfd(0)
        self._job, self._plan = job, plan
        self._code = 70
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait(self) -> int:
        self._thread.join()
        return self._code

    def send_signal(self, number: int) -> None:
        if number == signal.SIGTERM:
            self.told_at = time.monotonic()
        self.signals.come(number)

    def _run(self) -> None:
        self._job.here.host = self
        self.scratch.mkdir()
        paths = Paths(self._plan.root)
        environ = self._plan.environment | {
            flags.WATCHDOG_SECONDS.name: str(self._job.silence),
            flags.HOSTS_PORT.name: "0",  # The runner tells; the hosts here have no addresses.
        }
        index = self._plan.contract.hosts.index(self._plan.name)
        site = Site(self._plan.contract, paths, self._job.topology, environ, self.scratch)
        workers = [
            Worker(rank.rank, ("python", str(rank.rank)), {}, paths.code, rank_prefix(rank.rank))
            for rank in self._job.topology.local_ranks(index)
        ]
        try:
            run = entrypoint._Run(environ, paths, Console(self._job.console))
            self._code = run._train(site, workers, self.signals)
        finally:
            os.eventfd_write(self.over, 1)


class _Hosts:
    """All hosts of a job, and what stands for the system under them."""

    kill = signal.SIGKILL

    def __init__(self, topology: Topology, scratch: Path, console: int, silence: int) -> None:
        self.topology, self.scratch, self.console = topology, scratch, console
        self.silence = silence
        self.here = threading.local()
        self.hosts: dict[int, _Host] = {}
        self.ranks: dict[int, _Rank] = {}
        self._pids = count(_FIRST_PID)

    def open(self, plan: LocalPlan) -> None:
        """Nothing is shared."""

    def start(self, plan: LocalPlan, host: HostPlan) -> _Host:
        pid = next(self._pids)
        self.hosts[pid] = _Host(self, host, pid)
        return self.hosts[pid]

    def close(self, plan: LocalPlan) -> None:
        """Nothing is left."""

    @contextmanager
    def are_processes(self) -> Iterator[None]:
        """While this lasts, a supervisor that starts, signals and reaps means these."""
        with (
            mock.patch.object(subprocess, "Popen", self._start_rank),
            mock.patch.object(os, "kill", self._send),
            mock.patch.object(os, "pidfd_open", lambda pid: os.dup(self.hosts[pid].over)),
            mock.patch.object(supervisor, "reaped", self._reaped),
            mock.patch.object(supervisor, "kill_descendants", lambda wait: 0),
            mock.patch.object(runner, "kill_descendants", lambda wait: 0),
        ):
            yield

    def _start_rank(self, argv: tuple[str, ...], *, stdout: int, **how: Any) -> _Rank:
        rank = _Rank(self.here.host, next(self._pids), int(argv[-1]), stdout)
        self.ranks[rank.pid] = rank
        rank.host.ranks.append(rank)
        return rank

    def _send(self, pid: int, number: int) -> None:
        if pid < _FIRST_PID:
            _kill(pid, number)
        else:
            self.ranks[pid].kill(number)

    def _reaped(self) -> Iterator[tuple[int, int]]:
        ended = self.here.host.ended
        while ended:
            yield ended.pop(0)


class _Scenario(Runner[LocalPlan]):
    """A runner to whose job something happens once all of it runs."""

    happens: Callable[[], None]

    def _watch(self) -> None:
        logs = self.plan.directory / "logs"
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while not all((logs / host.name / STARTED).exists() for host in self.plan.hosts):
            if time.monotonic() > deadline:
                raise TimeoutError("The hosts do not start.")
            time.sleep(0.05)
        self.happens()
        super()._watch()


def _play(
    num_hosts: int, ranks_per_host: int, silence: int, happens: Callable[[_Hosts], None]
) -> tuple[_Hosts, _Scenario]:
    """Run a job to its end, to which something happens."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    threading.stack_size(_STACK_BYTES)
    with tempfile.TemporaryDirectory() as scratch, open(os.devnull, "wb") as console:
        os.environ[flags.HOME.name] = scratch
        script = Path(scratch, "train.py")
        script.touch()
        config = TrainingCompilerConfig()
        estimator = Estimator(script, instance_count=num_hosts, compiler_config=config)
        plan = estimator.plan(job_name="simulated")
        assert isinstance(plan, LocalPlan)
        plan.directory.mkdir(parents=True)
        directory.prepare(plan, (), directory.link_data)
        devices = {"GPU_NUM_DEVICES": str(ranks_per_host)}
        topology = discovery.discovered(plan.hosts[0].contract, devices, ())
        hosts = _Hosts(topology, Path(scratch), console.fileno(), silence)
        job = _Scenario(plan, local_jobs.first_record(plan), hosts)
        job.happens = lambda: happens(hosts)
        job.take_over()
        with hosts.are_processes():
            job.run()
    return hosts, job


def rank_death(num_hosts: int, ranks_per_host: int) -> dict[str, Any]:
    """A rank of the last host fails: seconds until its host, all hosts and all ranks are told."""
    dead: list[tuple[_Rank, float]] = []

    def die(hosts: _Hosts) -> None:
        dead.append((max(hosts.ranks.values(), key=lambda one: one.number), time.monotonic()))
        dead[0][0].end(1)

    hosts, job = _play(num_hosts, ranks_per_host, 600, die)
    rank, at = dead[0]
    told = {one: one.told_at - at for one in hosts.ranks.values() if one.told_at is not None}
    failure = job.record.failure
    assert failure is not None
    return {
        "ranks_told": len(told),
        "own_host_seconds": _longest(
            seconds for one, seconds in told.items() if one.host is rank.host
        ),
        "hosts_seconds": _longest(
            host.told_at - at for host in hosts.hosts.values() if host.told_at is not None
        ),
        "ranks_seconds": _longest(told.values()),
        "blamed_right": failure.rank == rank.number,
    }


def silence(num_hosts: int, ranks_per_host: int, seconds: int = 20) -> dict[str, Any]:
    """A rank of the last host hangs and all others in a collective with it, soon after it.

    Seconds beyond the configured ones until the first and the last rank is told to stop.
    """
    began: list[tuple[int, float]] = []

    def hang(hosts: _Hosts) -> None:
        first = max(rank.number for rank in hosts.ranks.values())
        delays = random.Random(num_hosts)
        now = time.monotonic()
        began.append((first, now))
        for rank in hosts.ranks.values():
            is_first = rank.number == first
            since = now if is_first else now + delays.uniform(0.01, _LATEST_SECONDS)
            collectives = 20 - is_first
            said = Progress(rank.number, rank.pid, 5, since, collectives, "all_reduce")
            progress.write(rank.host.scratch, said)

    hosts, job = _play(num_hosts, ranks_per_host, seconds, hang)
    first, at = began[0]
    told = [one.told_at - at - seconds for one in hosts.ranks.values() if one.told_at is not None]
    failure = job.record.failure
    assert failure is not None
    return {
        "configured_seconds": seconds,
        "ranks_told": len(told),
        "first_beyond_seconds": round(min(told), 3),
        "last_beyond_seconds": round(max(told), 3),
        "blamed_right": failure.rank == first,
    }


def _longest(seconds: Any) -> float:
    return round(max(seconds, default=0.0), 3)
