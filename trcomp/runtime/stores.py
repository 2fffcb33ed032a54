"""torch.distributed's store at the job's own address.

torch listens at every address of the machine: others could reach the store, and of two jobs that
use one port a rank could find the other's.
"""

from __future__ import annotations

import importlib
import socket
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store, TCPStore

from trcomp.env import interfaces

# `torch.distributed.rendezvous` is a function of the module's name.
_rendezvous = importlib.import_module("torch.distributed.rendezvous")
_torch_create = _rendezvous._create_c10d_store
_BACKLOG = 2048


def served(
    hostname: str, port: int, world_size: int, timeout: timedelta, *, wait_for_workers: bool
) -> Store | None:
    """A store that this process serves at one address; None if there it cannot.

    Args:
        hostname: What the other ranks are given: a name of this machine, or an address.
        port: 0: any that is free.
        world_size: The ranks, this one among them.
        timeout: How long it waits for what is not there.
        wait_for_workers: Return once all ranks have come.
    """
    address = interfaces.own_address(hostname)
    listener = None if address is None else _listening(address, port)
    if address is None or listener is None:
        return None
    return TCPStore(
        address,
        listener.getsockname()[1],
        world_size,
        True,
        timeout,
        wait_for_workers=wait_for_workers,
        multi_tenant=True,
        master_listen_fd=listener.detach(),
    )


def create(
    hostname: str, port: int, rank: int, world_size: int, timeout: timedelta, *options: Any
) -> Store:
    """The store that `env://` and `tcp://` name."""
    arguments = (hostname, port, rank, world_size, timeout, *options)
    if rank or _rendezvous._torchelastic_use_agent_store():
        return _torch_create(*arguments)
    own = served(hostname, port, world_size, timeout, wait_for_workers=True)
    return own or _torch_create(*arguments)


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
