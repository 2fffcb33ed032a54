"""Jobs of 10, 100 and 1,000 hosts with 8 ranks each, on one machine: what grows, and how fast.

- A host's bookkeeping: the real entrypoint from the contract's files to its workers.
- The ranks' words through the coordinator: the real code over a store that counts (simulated.py).
- The death of a host: the real runner, with a process that sleeps in place of each host.
- The death and the silence of a rank: real supervisors and watchdogs, too (simulated_hosts.py).
- Hosts that watch each other: the real connections of all (simulated_links.py).
- One host's supervisor with real processes: at rest, and carrying lines (one_host.py).
- Who looks at such a job: its log, `trcomp top`, its page (simulated_job.py, simulated_logs.py).
- The coordinator itself: JAX's own service with real clients, through a relay that counts bytes.

Run: python -m benchmarks simulation
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from trcomp import Estimator, TrainingCompilerConfig, contract, flags
from trcomp.backends import directory, local_jobs
from trcomp.backends.local_plan import HostPlan, LocalPlan
from trcomp.backends.runner import STARTED, Runner
from trcomp.entrypoint import discovery
from trcomp.entrypoint.workers import Site, plan_workers

HOSTS = (10, 100, 1000)
RANKS = 8
"""Of each host."""
_COLLECTIVES = 20
"""Of a job's first step, which the ranks compare."""
_SILENT_SECONDS = 20
"""From which a rank is taken to hang; its host looks as often as with the default."""
_SERVED = 8
"""Clients of the real service: what one of them costs does not depend on how many there are."""
_kept: list[Any] = []
"""A service that goes while its clients live ends the process."""
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "GLOG_minloglevel": "3"}


def bookkeeping(num_hosts: int) -> dict[str, Any]:
    """What the last host does before its workers start: seconds, names asked for, bytes."""
    names = tuple(f"algo-{number}" for number in range(1, num_hosts + 1))
    given = contract.Contract(
        job_name="simulated",
        hosts=names,
        current_host=max(names),
        hyperparameters={"lr": 0.1},
        settings=contract.Settings(program="train.py", compiler_enabled=True),
        instance_type="ml.p5.48xlarge",
    )
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        contract.write(root, given)
        (root / "code" / "train.py").touch()
        environ = {"GPU_NUM_DEVICES": str(RANKS)}
        asked: list[str] = []
        begin = time.perf_counter()
        found = contract.read(root, environ)
        topology = discovery.discovered(found, environ, ())
        site = Site(found, contract.Paths(root), topology, environ, root, num_cpus=96)
        workers = plan_workers(site)
        with mock.patch.object(discovery, "_unresolved", asked.extend):
            discovery.wait_for_names(topology, site.host_index, lambda seconds: None)
        seconds = time.perf_counter() - begin
    variables = [f"{name}={value}" for name, value in workers[-1].environ.items()]
    return {
        "seconds": round(seconds, 4),
        # The first host asks for all.
        "names_asked_for_by_all": num_hosts + len(asked) * (num_hosts - 1),
        "largest_variable_bytes": max(map(len, variables)),
        "environment_bytes": sum(map(len, variables)),
    }


def _meet(store: Any) -> None:
    from trcomp.runtime import distributed

    distributed._check_job(distributed.rank())
    distributed.rendezvous("simulated")


def _leave(store: Any) -> None:
    from trcomp.runtime import distributed

    distributed._await_peers(store)


def _compare(store: Any) -> None:
    from trcomp.runtime import comparing

    alike = [
        (f"all_reduce sum float32[{size}]", None, "train.py:1") for size in range(_COLLECTIVES)
    ]
    comparing.await_alike(comparing.tell(alike, is_new=True))


def _wait(store: Any) -> None:
    from trcomp.runtime import agreement, distributed, peers, waiting

    for number in range(_COLLECTIVES):
        agreement.ledger.begin(range(distributed.world_size()), f"all_reduce {number}", "")
    peers._look(waiting.Wait("", 0.0))


def _fail(store: Any) -> None:
    from trcomp.runtime import distributed

    rank, failed = distributed.rank(), 17
    words = f"{distributed.FAILED} {failed} ValueError: bad"
    if rank != failed:
        words = store.blocking_key_value_get(f"trcomp/asked/{rank}/1", 60_000)
    distributed.pass_on_failure(words)


def words(num_hosts: int) -> dict[str, Any]:
    """What the ranks say to each other through the coordinator, by occasion."""
    from benchmarks import simulated

    occasions: dict[str, Callable[[Any], None]] = {
        "meeting": _meet,
        "comparing": _compare,
        "waiting": _wait,
        "failing": _fail,
        "leaving": _leave,
    }
    found = {}
    for name, work in occasions.items():
        traffic = simulated.run(num_hosts * RANKS, RANKS, work)
        found[name] = {"requests": traffic.requests, "bytes": traffic.num_bytes}
    return found


class _Sleeper:
    """A host that does nothing: its runner's signals end it as they would an entrypoint."""

    def __init__(self, told: list[float]) -> None:
        self._process = subprocess.Popen(["sleep", "infinity"])
        self._told = told
        self.pid = self._process.pid

    def wait(self) -> int:
        return self._process.wait()

    def send_signal(self, number: int) -> None:
        if number == signal.SIGTERM:
            self._told.append(time.monotonic())
        self._process.send_signal(number)


class _Sleepers:
    """A job's hosts, of which one is killed once all have started."""

    kill = signal.SIGKILL

    def __init__(self) -> None:
        self.told: list[float] = []
        self.last: _Sleeper | None = None

    def open(self, plan: LocalPlan) -> None:
        """Nothing is shared."""

    def start(self, plan: LocalPlan, host: HostPlan) -> _Sleeper:
        (plan.directory / "logs" / host.name / STARTED).touch()
        self.last = _Sleeper(self.told)
        return self.last

    def close(self, plan: LocalPlan) -> None:
        """Nothing is left."""


class _Killing(Runner[LocalPlan]):
    killed_at = 0.0

    def _watch(self) -> None:
        assert isinstance(self.hosts, _Sleepers)
        assert self.hosts.last is not None
        _Killing.killed_at = time.monotonic()
        os.kill(self.hosts.last.pid, signal.SIGKILL)
        super()._watch()


def death(num_hosts: int) -> dict[str, Any]:
    """Seconds to plan a job, start its hosts, and have the rest told that one has died."""
    with tempfile.TemporaryDirectory() as scratch:
        os.environ[flags.HOME.name] = scratch
        script = Path(scratch, "train.py")
        script.touch()
        begin = time.monotonic()
        estimator = Estimator(
            script, instance_count=num_hosts, compiler_config=TrainingCompilerConfig()
        )
        plan = estimator.plan(job_name="simulated")
        assert isinstance(plan, LocalPlan)
        planned = time.monotonic()
        plan.directory.mkdir(parents=True)
        directory.prepare(plan, (), directory.link_data)
        prepared = time.monotonic()
        hosts = _Sleepers()
        runner = _Killing(plan, local_jobs.first_record(plan), hosts)
        runner.take_over()
        runner.run()
        written = {
            f"{name}_bytes": (plan.directory / f"{name}.json").stat().st_size
            for name in ("job", "plan")
        }
    return {
        "plan_seconds": round(planned - begin, 3),
        "files_seconds": round(prepared - planned, 3),
        "start_seconds": round(_Killing.killed_at - prepared, 3),
        "noticed_seconds": round(max(hosts.told) - _Killing.killed_at, 3),
        "hosts_told": len(hosts.told),
        **written,
    }


def _rank_death(num_hosts: int) -> dict[str, Any]:
    from benchmarks import simulated_hosts

    return simulated_hosts.rank_death(num_hosts, RANKS)


def _links(num_hosts: int) -> dict[str, Any]:
    from benchmarks import simulated_links

    return simulated_links.failure(num_hosts)


def _silence(num_hosts: int, seconds: int = _SILENT_SECONDS) -> dict[str, Any]:
    from benchmarks import simulated_hosts

    return simulated_hosts.silence(num_hosts, RANKS, seconds)


def _look(num_hosts: int) -> dict[str, Any]:
    from benchmarks import simulated_job

    with tempfile.TemporaryDirectory() as scratch:
        os.environ[flags.HOME.name] = scratch
        return simulated_job.look(num_hosts, RANKS)


def _calls(num_hosts: int) -> dict[str, Any]:
    from benchmarks import simulated_logs

    return simulated_logs.calls(num_hosts)


def _one_host(lines_of_each: int = 500_000, seconds: int = 60) -> dict[str, Any]:
    from benchmarks import one_host

    return one_host.pump(RANKS, lines_of_each) | one_host.rest(RANKS, seconds)


class _Relay:
    """Passes connections on to a port of this machine, and counts what goes through."""

    def __init__(self, port: int) -> None:
        self.num_bytes = 0
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            near, _ = self._listener.accept()
            far = socket.create_connection(("127.0.0.1", self._target))
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        while data := source.recv(1 << 16):
            self.num_bytes += len(data)
            sink.sendall(data)


def service(seconds: float = 26.0) -> dict[str, Any]:
    """What a rank costs the real service: bytes a second at rest, and beside a request's own."""
    from jaxlib import _jax

    from trcomp.runtime import distributed, waiting

    timeout = distributed._HEARTBEAT_SECONDS
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    served = _jax.get_distributed_runtime_service(
        f"127.0.0.1:{port}", _SERVED, heartbeat_timeout=timeout, shutdown_timeout=5
    )
    relay = _Relay(port)
    clients = [
        _jax.get_distributed_runtime_client(
            f"127.0.0.1:{relay.port}", rank, init_timeout=60, heartbeat_timeout=timeout
        )
        for rank in range(_SERVED)
    ]
    joining = [threading.Thread(target=client.connect) for client in clients]
    for thread in joining:
        thread.start()
    for thread in joining:
        thread.join()
    before = relay.num_bytes
    time.sleep(seconds)
    at_rest = (relay.num_bytes - before) / seconds / _SERVED
    before, count = relay.num_bytes, 200
    begin = time.perf_counter()
    for number in range(count):
        clients[0].key_value_set(f"trcomp/{number}", "")
    spent = time.perf_counter() - begin
    own = sum(len(f"trcomp/{number}") for number in range(count))
    found = {
        "clients": _SERVED,
        "heartbeat_timeout_seconds": timeout,
        "pause_seconds": waiting._MOST_PATIENCE_SECONDS,
        "bytes_per_second_and_rank": round(at_rest, 1),
        "bytes_per_request": round((relay.num_bytes - before - own) / count),
        "requests_per_second_of_one": round(count / spent),
    }
    _kept.extend([served, *clients])
    return found


_PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "bookkeeping": bookkeeping,
    "words": words,
    "death": death,
    "rank_death": _rank_death,
    "silence": _silence,
    "links": _links,
    "look": _look,
    "calls": _calls,
    "one_host": _one_host,
    "service": service,
}
_OF_A_JOB = tuple(part for part in _PARTS if part not in ("one_host", "service"))


def in_a_process(part: str, *arguments: int) -> dict[str, Any]:
    """A part in a process of its own: the runner takes the signals, the service ends with it."""
    command = [sys.executable, "-m", "benchmarks.simulation", part, *map(str, arguments)]
    ended = subprocess.run(
        command, env=os.environ | _QUIET, stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def measure(num_hosts: int) -> dict[str, Any]:
    """All figures of a job of so many hosts."""
    return {"hosts": num_hosts} | {part: in_a_process(part, num_hosts) for part in _OF_A_JOB}


def main(**limits: Any) -> dict[str, Any]:
    """The figures."""
    alone = {part: in_a_process(part) for part in ("service", "one_host")}
    return alone | {"jobs": [measure(hosts) for hosts in HOSTS]}


if __name__ == "__main__":
    print(json.dumps(_PARTS[sys.argv[1]](*map(int, sys.argv[2:]))), flush=True)
    os._exit(0)  # XLA's service would wait for its clients.
