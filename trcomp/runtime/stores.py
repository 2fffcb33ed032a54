"""torch.distributed's store of a job whose hosts are all this machine: at the job's own address.

torch listens at every address of the machine, so two jobs that use one port would be in each
other's way; and a rank could find the other job's store.
"""

from __future__ import annotations

import importlib
import socket
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store, TCPStore

# `torch.distributed.rendezvous` is a function of the module's name.
_rendezvous = importlib.import_module("torch.distributed.rendezvous")
_torch_create = _rendezvous._create_c10d_store
_BACKLOG = 2048


def create(
    hostname: str, port: int, rank: int, world_size: int, timeout: timedelta, *options: Any
) -> Store:
    """The store that `env://` and `tcp://` name."""
    arguments = (hostname, port, rank, world_size, timeout, *options)
    if rank or not hostname.startswith("127.") or _rendezvous._torchelastic_use_agent_store():
        return _torch_create(*arguments)
    listener = _listening(hostname, port)
    if listener is None:
        return _torch_create(*arguments)
    return TCPStore(
        hostname,
        port,
        world_size,
        True,
        timeout,
        multi_tenant=True,
        master_listen_fd=listener.detach(),
    )


def _listening(hostname: str, port: int) -> socket.socket | None:
    """A socket at one address; None if this process serves the port already."""
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((hostname, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        return None
    return listener


def register() -> None:
    """Have torch create its stores so."""
    _rendezvous._create_c10d_store = create  # type: ignore[attr-defined]
