"""Registers the c10d backend and how its ranks meet: whose rank this is, `xla://`, the store."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import timedelta
from functools import wraps
from typing import Any

from torch._C._distributed_c10d import HashStore, Store, TCPStore
from torch.distributed.distributed_c10d import Backend, BackendConfig
from torch.distributed.rendezvous import register_rendezvous_handler

from trcomp.errors import DeviceError
from trcomp.runtime import distributed, meshes, own_rank, stores
from trcomp.runtime.device import NAME, Process
from trcomp.runtime.process_group import XlaProcessGroup

_STORE_SECONDS = 300


def create(options: Any, backend_options: Any = None) -> XlaProcessGroup:
    """The group that `init_process_group` or `new_group` asks for.

    Raises:
        DeviceError: It contradicts what this process is already.
    """
    rank, size, ranks = options.group_rank, options.group_size, options.global_ranks_in_group
    if not ranks:
        become(rank, size, options.store)
    return XlaProcessGroup(options.store, rank, size, ranks, options.timeout)


def become(rank: int, size: int, store: Store) -> None:
    """Take the rank that a script gives this process, and join the others.

    Raises:
        DeviceError: The process has another rank, or has used the device alone.
    """
    if not own_rank.is_given():
        if size == 1:
            return
        if Process.started:
            raise DeviceError(
                f"This process becomes rank {rank} of {size}, but it has used the xla device "
                "alone before.",
                "Call init_process_group before anything touches the device.",
            )
        distributed.take_rank(rank, size, _names(rank, size, store))
    elif (distributed.rank(), distributed.world_size()) != (rank, size):
        raise DeviceError(
            f"init_process_group got rank={rank}, world_size={size}; this process is rank "
            f"{distributed.rank()} of {distributed.world_size()} already.",
            "Leave rank and world_size out; torch.distributed.new_group makes smaller groups.",
        )
    distributed.join(store)


def _names(rank: int, size: int, store: Store) -> list[str]:
    """The host of each rank."""
    store.set(f"host/{rank}", socket.gethostname())
    return [store.get(f"host/{peer}").decode() for peer in range(size)]


def _meet(
    url: str, timeout: timedelta = timedelta(seconds=_STORE_SECONDS), **options: Any
) -> Iterator[tuple[Store, int, int]]:
    """`init_method="xla://"`: rank 0 opens a store and tells the others where."""
    rank, size = distributed.rank(), distributed.world_size()
    if size == 1:
        yield HashStore(), rank, size
        return
    host = distributed.coordinator_host()
    store: Any = None
    if rank == 0:
        store = stores.served(host, 0, size, timeout, wait_for_workers=False)
        store = store or TCPStore(host, 0, size, True, timeout, False)
    port = b"" if store is None else str(store.port).encode()
    port = distributed.rendezvous("xla://", port)[0]
    yield store or TCPStore(host, int(port), size, False, timeout), rank, size


NAMES = {NAME}
"""The backends that are this one."""


def _register_mixed() -> None:
    """Let "cpu:gloo,xla:xla" make one group, which has its own gloo; torch would drop its."""
    initialize = BackendConfig.__init__

    @wraps(initialize)
    def ours_first(self: BackendConfig, backend: Any) -> None:
        initialize(self, backend)
        pairs = self.device_backend_map.items()
        self.device_backend_map = dict(sorted(pairs, key=lambda pair: pair[1] not in NAMES))

    setattr(BackendConfig, "__init__", ours_first)  # noqa: B010


def register() -> None:
    """Make "xla" a backend of torch.distributed and "xla://" a way to meet."""
    Backend.register_backend(NAME, create, extended_api=True, devices=[NAME])
    register_rendezvous_handler(NAME, _meet)
    _register_mixed()
    meshes.register()
