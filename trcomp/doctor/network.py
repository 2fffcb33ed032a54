"""Checks of how ranks find each other: loopback, host name, ports, proxies."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from trcomp.doctor.findings import Asked, Check, Finding, ok, problem, warning
from trcomp.env.topology import Topology
from trcomp.env.variables import PROXIES

_LOOPBACK = ("127.0.0.1", "127.83.17.5")
"""The second stands for a job's host: each gets an address of its own out of 127.0.0.0/8."""
_SLOW_SECONDS = 2.0
_FEW_PORTS = 1000
_ANSWER_SECONDS = 5
_OWN_NAMES = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class HostName:
    """How this machine's own name resolves.

    Attributes:
        addresses: To what, without doubles.
        foreign: Those that are not this machine's.
        seconds: How long that took.
        error: Why it does not resolve.
    """

    name: str
    addresses: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Ports:
    """The ports that ranks meet at.

    Attributes:
        taken: Those that another program holds on all addresses, with what they are for.
        num_free: How many the system gives to those that ask for any.
    """

    taken: Mapping[int, str]
    num_free: int | None = None


def read_loopback(asked: Asked) -> dict[str, str]:
    """What goes wrong on this machine's own addresses; empty if nothing does."""
    errors = {address: _talks(address) for address in _LOOPBACK}
    return {address: error for address, error in errors.items() if error}


def read_host_name(asked: Asked) -> HostName:
    """How this machine's own name resolves."""
    name, begin = socket.gethostname(), time.monotonic()
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return HostName(name, error=getattr(error, "strerror", None) or str(error))
    seconds = time.monotonic() - begin
    addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in found))
    foreign = tuple(address for address in addresses if _bound(address, 0))
    return HostName(name, addresses, foreign, seconds)


def read_ports(asked: Asked) -> Ports:
    """Which of the ports that jobs use are taken, and how many others there are."""
    wanted = {
        Topology.coordinator_port: "where ranks meet",
        Topology.master_port: "torch.distributed's store",
    }
    taken = {
        port: use for port, use in wanted.items() if _bound(_LOOPBACK[1], port) == errno.EADDRINUSE
    }
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            low, high = map(int, file.read().split())
    except (OSError, ValueError):
        return Ports(taken)
    return Ports(taken, high - low + 1)


def read_proxies(asked: Asked) -> dict[str, str]:
    """The variables about proxies that are set."""
    names = {*PROXIES, "no_proxy", "no_grpc_proxy"}
    return {name: value for name, value in os.environ.items() if name.lower() in names and value}


def judge_loopback(errors: Mapping[str, str], asked: Asked) -> Finding:
    """Whether processes of this machine reach each other."""
    if errors:
        return problem(
            "; ".join(f"{address}: {error}" for address, error in errors.items()) + ".",
            "Bring it up (`sudo ip link set lo up`), and let no firewall hold back what goes "
            "within 127.0.0.0/8.",
        )
    return ok(f"{_LOOPBACK[0]} and the addresses of jobs' hosts answer")


def judge_host_name(found: HostName, asked: Asked) -> Finding:
    """Whether ranks that name this machine by its name would find it."""
    hosts = f"Add a line `127.0.1.1 {found.name}` to /etc/hosts, or its network address instead"
    if found.error:
        return problem(
            f"{found.name} does not resolve: {found.error}. JAX and gloo look it up.", f"{hosts}."
        )
    shown = f"{found.name}, {', '.join(found.addresses)}"
    if found.foreign:
        return warning(
            f"{shown}: {', '.join(found.foreign)} is no address of this machine.",
            f"{hosts}, and remove what leads elsewhere.",
        )
    if found.seconds > _SLOW_SECONDS:
        slow = f"{shown}, found after {found.seconds:.1f} s"
        return warning(f"{slow}: every rank waits as long.", f"{hosts}.")
    return ok(shown)


def judge_ports(ports: Ports, asked: Asked) -> Finding:
    """Whether the ports that ranks meet at are free."""
    if ports.taken:
        what = " and ".join(f"{port} ({use})" for port, use in ports.taken.items())
        return problem(
            f"Another program listens on every address at {what}.",
            "`ss -ltnp` shows which. Stop it, or let it listen on one address.",
        )
    if ports.num_free is not None and ports.num_free < _FEW_PORTS:
        return warning(
            f"The system gives out {ports.num_free} ports only.",
            "`sudo sysctl net.ipv4.ip_local_port_range='32768 60999'`.",
        )
    return ok(f"{Topology.coordinator_port} and {Topology.master_port} are free")


def judge_proxies(variables: Mapping[str, str], asked: Asked) -> Finding:
    """Whether a proxy would get between ranks. Their addresses hold passwords: none is shown."""
    names = sorted(name for name in variables if name.lower() in PROXIES)
    if not names:
        return ok("none")
    exempt = {name: variables.get(name, "") for name in ("no_proxy", "no_grpc_proxy")}
    text = exempt["no_grpc_proxy"] or exempt["no_proxy"]
    if _all_exempt(text.split(",")):
        return ok(f"{', '.join(names)}, but not for this machine")
    listed = ",".join(filter(None, [text, *_OWN_NAMES, socket.gethostname()]))
    return warning(
        f"{', '.join(names)}: gRPC, by which ranks meet, would go through it. trcomp's jobs keep "
        "their own traffic off it; ranks started otherwise hang.",
        f"export no_proxy={listed}",
    )


def _all_exempt(entries: Sequence[str]) -> bool:
    given = {entry.strip() for entry in entries}
    return "*" in given or given.issuperset(_OWN_NAMES)


def _talks(address: str) -> str:
    """Why two sockets of this machine cannot talk by an address; empty if they can."""
    try:
        with (
            closing(socket.create_server((address, 0))) as server,
            closing(socket.create_connection(server.getsockname(), _ANSWER_SECONDS)) as client,
        ):
            client.sendall(b"x")
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _bound(address: str, port: int) -> int:
    """Why no socket can be bound there, as an error number; 0 if one can."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as trial:
        try:
            trial.bind((address, port))
        except OSError as error:
            return error.errno or -1
    return 0


CHECKS = (
    Check(
        "loopback",
        read_loopback,
        judge_loopback,
        "connections within this machine, also on 127.x addresses like those of jobs' hosts",
        "they fail",
    ),
    Check(
        "host name",
        read_host_name,
        judge_host_name,
        "what this machine's own name resolves to",
        "it does not, to another machine, or slowly",
    ),
    Check(
        "ports",
        read_ports,
        judge_ports,
        f"{Topology.coordinator_port} and {Topology.master_port}, where the ranks of jobs meet",
        "another program holds one on every address",
    ),
    Check(
        "proxies",
        read_proxies,
        judge_proxies,
        "http_proxy and its kin, no_proxy",
        "ranks that trcomp did not start would meet through the proxy, and hang",
    ),
)
