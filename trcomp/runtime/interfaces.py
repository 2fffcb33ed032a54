"""At which of a machine's addresses the servers of a job listen: at the job's own, not at all.

JAX's coordination service, torch's store and gloo have no passwords: who can reach them can be in
the job's way. They listen where the other ranks look for them, and nowhere else.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Mapping
from contextlib import suppress

from trcomp import flags
from trcomp.env import variables

_LOCAL = "127.0.0.1"


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


def job_token(environ: Mapping[str, str]) -> str:
    """What only the ranks of one job agree on: a rank that meets another job's ranks notices."""
    parts = (flags.JOB_NAME.get(environ), flags.TOPOLOGY.get(environ))
    return hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:32]
