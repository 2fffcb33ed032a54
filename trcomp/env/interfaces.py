"""At which of a machine's addresses and interfaces a job's servers listen: at its own, not at all.

JAX's coordination service, torch's store and gloo have no passwords: who can reach them can be in
the job's way. They listen where the other ranks look for them, and nowhere else.
"""

from __future__ import annotations

import fcntl
import hashlib
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress

from trcomp.env import variables

LOOPBACK = "lo"
_LOCAL = "127.0.0.1"
_SIOCGIFADDR = 0x8915
"""The kernel's netdevice(7): an interface's address."""
_ANY_PORT = 9


def own_address(host: str) -> str | None:
    """The address at which ranks that are given this name will look for a server on this machine.

    Args:
        host: A name of this machine, or an address.

    Returns:
        None if it is not certain: the name leads to several addresses, or to a loopback address as
        a machine's own name often does on the machine itself, and elsewhere to another.
    """
    if host.startswith("127."):
        return host
    if host == "localhost":
        return _LOCAL
    with suppress(OSError, UnicodeError):
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None, socket.AF_INET)}
        (address,) = map(str, found) if len(found) == 1 else ("",)
        if address and not address.startswith("127."):
            with socket.socket() as probe:
                probe.bind((address, 0))
            return address
    return None


def bind_address(coordinator: str, environ: Mapping[str, str]) -> str | None:
    """Where rank 0 serves the others; None leaves it to JAX, which listens at all addresses.

    Args:
        coordinator: ``address:port`` at which the ranks look for it.
        environ: Names another place, if somebody wants it.
    """
    given = variables.coordinator_bind_address(environ)
    host, _, port = coordinator.rpartition(":")
    address = own_address(host)
    return given or (f"{address}:{port}" if address else None)


def job_token(job_name: str, topology: str) -> str:
    """What only those of one job agree on: who meets another job's ranks or hosts notices.

    Args:
        job_name: The job's.
        topology: As one line of JSON.
    """
    parts = (job_name, topology)
    return hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:32]


def toward(host: str) -> str:
    """The interface by which packets to a host leave; of this machine itself, that of its address.

    Args:
        host: A name or an address.

    Returns:
        Empty if it is not certain: the host is unknown, or its name leads to a loopback address, as
        a machine's own name often does on the machine itself.
    """
    with suppress(OSError, UnicodeError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, _ANY_PORT))  # Chooses a route, and sends nothing.
        own = probe.getsockname()[0]
        if not own.startswith("127."):
            names = [name for _, name in socket.if_nameindex()]
            return next((name for name in names if _address(probe, name) == own), "")
    return ""


def _address(probe: socket.socket, interface: str) -> str:
    """The interface's address, empty if it has none."""
    with suppress(OSError):
        answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", interface.encode()))
        return socket.inet_ntoa(answer[20:24])
    return ""
