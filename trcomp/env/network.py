"""Which of this machine's network interfaces leads to the other hosts."""

from __future__ import annotations

import fcntl
import socket
import struct
from contextlib import suppress

LOOPBACK = "lo"
_SIOCGIFADDR = 0x8915
"""The kernel's netdevice(7): an interface's address."""
_ANY_PORT = 9


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
