"""A job of two hosts with networks of their own: where it listens, and a host that is lost."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.network_hosts import NetworkHost, network_hosts
from trcomp import Estimator, TrainingCompilerConfig, contract, flags
from trcomp.backends.local_plan import LocalPlan

pytestmark = [pytest.mark.e2e, pytest.mark.runtime, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "meets.py"
NAMES = ("algo-1", "algo-2")


class Job:
    """The script on both hosts, each with the real entrypoint and two ranks."""

    def __init__(self, hosts: list[NetworkHost], place: Path) -> None:
        self.hosts = hosts
        self.place = place
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *, compiled: bool, interface: str) -> None:
        """Start it, and wait until all ranks have added up once."""
        config = TrainingCompilerConfig(enabled=compiled)
        plan = Estimator(SCRIPT, instance_count=2, compiler_config=config).plan(job_name="job")
        assert isinstance(plan, LocalPlan)
        for host, planned in zip(self.hosts, plan.hosts, strict=True):
            paths = contract.Paths(self.place / host.name)
            given = dataclasses.replace(planned.contract, network_interface_name=interface)
            contract.write(paths.root, given)
            paths.code.mkdir(parents=True, exist_ok=True)
            shutil.copy(SCRIPT, paths.code)
            environ = {
                "PATH": os.environ["PATH"],
                "HOME": str(self.place),
                "PYTHONPATH": str(ROOT),
                "SAGEMAKER_BASE_DIR": str(paths.root),
                "TRAINING_JOB_NAME": "job",
                "GPU_NUM_DEVICES": "2",
                "MEETING": str(self.place),
                flags.CACHE.name: "off",
            }
            argv = [sys.executable, "-P", "-m", "trcomp.entrypoint"]
            self.processes.append(host.start(argv, environ, self._log(host)))
        while len(list(self.place.glob("met-*"))) < 4:
            assert all(process.poll() is None for process in self.processes), self.log()
            time.sleep(0.05)

    def codes(self) -> list[int]:
        """How the hosts' entrypoints end."""
        return [process.wait(timeout=120) for process in self.processes]

    def log(self) -> str:
        """What both hosts have printed."""
        return "".join(self._log(host).read_text(errors="replace") for host in self.hosts)

    def failure(self, host: NetworkHost) -> str:
        """What a host says of the failure."""
        return contract.Paths(self.place / host.name).failure.read_text()

    def _log(self, host: NetworkHost) -> Path:
        return self.place / f"{host.name}.log"


@contextmanager
def jobs(place: Path) -> Iterator[Job]:
    with network_hosts(NAMES, place) as hosts:
        job = Job(hosts, place)
        try:
            yield job
        finally:
            for host in hosts:
                host.kill_all()
            for process in job.processes:
                process.wait()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setenv(flags.HOME.name, str(tmp_path / "home"))
    with jobs(tmp_path) as made:
        yield made


def as_printed(address: str) -> set[str]:
    """An address as /proc/net/tcp and tcp6 print it: four bytes at a time, the last first."""
    found = socket.inet_aton(address)[::-1].hex().upper()
    return {found, f"{'0' * 16}FFFF0000{found}"}


@pytest.mark.parametrize("compiled", [True, False], ids=["xla", "gloo"])
@pytest.mark.parametrize("interface", ["eth0", "unknown"])
def test_ranks_meet_at_the_jobs_own_interface_alone(
    job: Job, compiled: bool, interface: str
) -> None:
    # "unknown" stands for a host that says of no interface that is there that it leads to others.
    job.start(compiled=compiled, interface=interface)
    for host in job.hosts:
        found = host.listening()
        assert found and found <= as_printed(host.address)
    (job.place / "end").touch()
    assert job.codes() == [0, 0]
    assert job.log().count("sum 4.0 4.0") == 4


def test_a_host_that_is_killed_is_missed_by_the_other(job: Job) -> None:
    job.start(compiled=True, interface="eth0")
    job.hosts[1].kill_all()
    assert job.codes()[0] == 1
    assert "PeerLostError" in job.failure(job.hosts[0])


def test_a_host_whose_network_is_cut_is_named_by_the_other(job: Job) -> None:
    job.start(compiled=True, interface="eth0")
    job.hosts[1].run("ip", "link", "set", "eth0", "down")
    assert job.codes() == [134, 134]
    assert "Ranks 2, 3 are not heard of any more" in job.failure(job.hosts[0])
    assert "Rank 0, through which the ranks meet, is not heard of any more" in job.failure(
        job.hosts[1]
    )


def test_so_it_is_without_xla_where_ranks_would_wait_for_half_an_hour(job: Job) -> None:
    job.start(compiled=False, interface="eth0")
    cut = time.monotonic()
    job.hosts[1].run("ip", "link", "set", "eth0", "down")
    assert job.codes() == [70, 70]
    assert time.monotonic() - cut < 20  # Within 15; and both have ended.
    for host, other in (job.hosts, job.hosts[::-1]):
        text = f"Host {other.name} is not heard of any more: it is down, stopped, or cut off."
        assert text in job.failure(host)


def test_a_host_that_is_killed_is_missed_without_xla_too(job: Job) -> None:
    job.start(compiled=False, interface="eth0")
    job.hosts[1].kill_all()
    assert job.codes()[0] == 1
    assert re.search("Connection (closed|reset) by peer", job.failure(job.hosts[0]))


@pytest.mark.parametrize("hosts", [1, 2])
def test_torchruns_ranks_meet_where_a_hosts_own_name_leads_nowhere(job: Job, hosts: int) -> None:
    (job.place / "end").touch()
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    run += [f"--nnodes={hosts}", "--master-addr=algo-1", "--master-port=29400"]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "MEETING": str(job.place)}
    for rank, host in enumerate(job.hosts[:hosts]):
        argv = [*run, f"--node-rank={rank}", str(SCRIPT)]
        job.processes.append(host.start(argv, environ, job.place / f"{host.name}.log"))
    assert job.codes() == [0] * hosts
    total = f"sum {2 * hosts}.0 {2 * hosts}.0"
    logs = [(job.place / f"{host.name}.log").read_text() for host in job.hosts[:hosts]]
    assert [log.count(total) for log in logs] == [2] * hosts
