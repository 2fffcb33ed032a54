"""The same jobs through Podman's Docker-compatible socket."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.docker import base_image
from tests.docker.conftest import missing
from tests.docker.jobs import Place, until
from trcomp import JobFailedError, JobStoppedError
from trcomp.images.engine import connect

pytestmark = pytest.mark.slow

IMAGE = "docker.io/library/trcomp-tests:latest"
"""What Podman calls what it imports, whatever tag it is told."""
_START_SECONDS = 30


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A client of a Podman of the tests' own."""
    if shutil.which("podman") is None or os.getuid() != 0:
        missing("Podman is not installed, or this is not root: jobs through it were not tested.")
    # A socket's path has 108 characters at most.
    with tempfile.TemporaryDirectory(prefix="podman-") as name, pytest.MonkeyPatch.context() as m:
        root = Path(name)
        m.setenv("CONTAINERS_CONF", str(_configuration(root)))
        place = ["--root", str(root / "root"), "--runroot", str(root / "run")]
        m.setenv("DOCKER_HOST", f"unix://{root}/podman.sock")
        command = ["podman", *place, "system", "service", "--time=0", os.environ["DOCKER_HOST"]]
        with (root / "log").open("wb") as log:
            service = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _await_socket(root / "podman.sock", service, root / "log")
            client = connect()
            base_image.make(client, IMAGE)
            yield client
            client.close()
        finally:
            service.terminate()
            service.wait(30)
            with suppress(OSError):
                subprocess.run(["umount", str(root / "root/overlay")], capture_output=True)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, podman: Any) -> Iterator[Place]:
    """Where a test's jobs are kept."""
    monkeypatch.setenv("TRCOMP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRCOMP_GRACE_SECONDS", "5")
    found = Place(tmp_path, IMAGE, podman)
    yield found
    for job in found.submitted:
        for _ in range(2):
            job.stop()


def test_two_hosts_and_their_results(place: Place) -> None:
    script = """
        import os, pathlib, socket, sys, time
        host, rank = os.environ["SM_CURRENT_HOST"], os.environ["RANK"]
        other = {"algo-1": "algo-2", "algo-2": "algo-1"}[host]
        print("found", socket.gethostbyname(other) != "127.0.0.1")
        # A host that has ended is not found any more.
        (checkpoints := pathlib.Path("/opt/ml/checkpoints")).joinpath(host).touch()
        while not (checkpoints / other).exists():
            time.sleep(0.01)
        os.write(1, b"\\xff no text\\n")
        for number in range(300):
            print(number, "x" * (number % 5 * 5000))
        pathlib.Path(os.environ["SM_MODEL_DIR"], rank).write_text("m")
    """
    job = place.started(script, instance_count=2, checkpoint_s3_uri=place.root / "kept")
    assert job.wait(timeout=120) == "Completed"
    lines = list(job.logs())
    assert sum("found True" in line for line in lines) == 2
    for rank, host in enumerate(("algo-1", "algo-2")):
        prefix = f"[{host} rank {rank}] "
        own = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
        assert own[-300:] == [f"{n} {'x' * (n % 5 * 5000)}" for n in range(300)]
        assert "� no text" in own
    assert place.containers(job) == place.networks(job) == []


def test_failures_and_stops(place: Place) -> None:
    failed = place.started("raise SystemExit(7)", "failed")
    with pytest.raises(JobFailedError) as caught:
        failed.wait(timeout=120)
    assert caught.value.exit_code == 7
    stopped = place.started("import time; print('ready'); time.sleep(600)", "stopped")
    until(stopped, "ready")
    stopped.stop()
    with pytest.raises(JobStoppedError):
        stopped.wait(timeout=60)
    assert any("Stopped by SIGTERM" in line for line in stopped.logs())
    for job in (failed, stopped):
        assert place.containers(job) == place.networks(job) == []


def _configuration(root: Path) -> Path:
    """Podman as it runs where there is no systemd, within the limits of this process."""
    limits = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    hard = {name: resource.getrlimit(which)[1] for name, which in limits.items()}
    capped = {name: min(value, 20000) if value > 0 else 20000 for name, value in hard.items()}
    ulimits = ", ".join(f'"{name}={value}:{value}"' for name, value in capped.items())
    # crun refuses machines with both versions of cgroups.
    runtime = 'runtime = "runc"\n' if shutil.which("runc") else ""
    file = root / "containers.conf"
    file.write_text(
        f"[containers]\ndefault_ulimits = [{ulimits}]\n"
        f'[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n{runtime}'
        '[network]\nnetwork_backend = "netavark"\n'
        f'network_config_dir = "{root}/networks"\n'
    )
    return file


def _await_socket(path: Path, service: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while service.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as trial:
            trial.connect(str(path))
            return
        time.sleep(0.05)
    raise AssertionError(f"Podman's service did not start: {log.read_text()}")
