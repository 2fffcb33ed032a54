"""Hosts of their own network stacks on this machine: names, addresses, two interfaces each.

world     a user namespace, in which one may make networks
  host 1    eth0 10.77.0.1 ---- eth0 10.77.0.2    host 2     the job's network
            eth1 192.0.2.1 ---- eth1 192.0.2.2               another, which it must not use
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

NETWORKS = {"eth0": "10.77.0", "eth1": "192.0.2"}
_HOLDER = "echo held; exec sleep infinity"
_STATE_LISTEN = "0A"


@dataclass(frozen=True)
class NetworkHost:
    """One host.

    Attributes:
        name: By which the other finds it.
        address: Of that name.
        pid: A process that holds its namespaces.
    """

    name: str
    address: str
    pid: int

    def start(
        self, argv: Sequence[str], environ: Mapping[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        """Start a process on it, in a process group of its own."""
        with log.open("wb") as output:
            return subprocess.Popen(
                [*_within(self.pid), *argv],
                env=dict(environ),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, *argv: str) -> None:
        """Run a command on it."""
        subprocess.run([*_within(self.pid), *argv], check=True)

    def kill_all(self) -> None:
        """End all that runs on it, as the loss of a machine would; its network stays."""
        own = _network_of(self.pid)
        for place in Path("/proc").glob("[0-9]*"):
            pid = int(place.name)
            with suppress(OSError):
                if pid != self.pid and _network_of(pid) == own:
                    os.kill(pid, signal.SIGKILL)

    def listening(self) -> set[str]:
        """The addresses at which its processes listen, in hexadecimal as the kernel prints them."""
        tables = [Path(f"/proc/{self.pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
        rows = [line.split() for table in tables for line in table.splitlines()[1:]]
        return {row[1].partition(":")[0] for row in rows if row[3] == _STATE_LISTEN}


@contextmanager
def network_hosts(names: Sequence[str], place: Path) -> Iterator[list[NetworkHost]]:
    """Two hosts that find each other by name; neither's own host name leads anywhere."""
    addresses = [f"{NETWORKS['eth0']}.{number + 1}" for number in range(len(names))]
    hosts_file = place / "hosts"
    lines = [f"{address} {name}\n" for address, name in zip(addresses, names, strict=True)]
    hosts_file.write_text("".join(["127.0.0.1 localhost\n", *lines]))
    with ExitStack() as stack:
        world = stack.enter_context(_held(["unshare", "--user", "--map-root-user", "--net"]))
        enter = ["nsenter", f"--target={world}", "--user", "--net"]
        unshare = [*enter, "unshare", "--net", "--uts", "--mount"]
        pids = [stack.enter_context(_held(unshare)) for _ in names]
        found = [NetworkHost(*one) for one in zip(names, addresses, pids, strict=True)]
        first, second = (str(pid) for pid in pids)
        for interface in NETWORKS:
            link = ["ip", "link", "add", interface, "netns", first, "type", "veth"]
            subprocess.run([*enter, *link, "peer", interface, "netns", second], check=True)
        for number, host in enumerate(found, 1):
            host.run("mount", "--bind", str(hosts_file), "/etc/hosts")
            host.run("hostname", f"box-{number}")
            host.run("ip", "link", "set", "lo", "up")
            for interface, network in NETWORKS.items():
                host.run("ip", "address", "add", f"{network}.{number}/24", "dev", interface)
                host.run("ip", "link", "set", interface, "up")
        yield found


def _network_of(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


def _within(pid: int) -> list[str]:
    return ["nsenter", f"--target={pid}", "--user", "--net", "--uts", "--mount"]


@contextmanager
def _held(argv: Sequence[str]) -> Iterator[int]:
    """Namespaces as long as the block lasts: the process that holds them."""
    with subprocess.Popen(
        [*argv, "sh", "-c", _HOLDER], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None and holder.stderr is not None
        try:
            if holder.stdout.readline() != b"held\n":
                reason = holder.stderr.read().decode().strip()
                pytest.skip(f"Networks cannot be made here: {reason}")
            yield holder.pid
        finally:
            holder.kill()
