"""A job of thousands of ranks in one process: the network is a fake that counts, the code is real.

Each rank is a thread. What a rank's process has once, its number and its counts of meetings, each
thread has for itself; the key-value store, which rank 0's host serves, is one object for all.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import jax
from jax._src.distributed import global_state

from trcomp.env.variables import Identity
from trcomp.runtime import agreement, distributed, own_rank

_STACK_BYTES = 1 << 18
_DEADLINE_SECONDS = 600.0


@dataclass
class Traffic:
    """What went through the store: requests, and bytes of keys and values both ways."""

    requests: int = 0
    num_bytes: int = 0


@dataclass
class Store:
    """JAX's key-value store, as far as trcomp uses it, in memory.

    Attributes:
        num_ranks: How many meet at a barrier.
    """

    num_ranks: int
    traffic: Traffic = field(default_factory=Traffic)
    _values: dict[str, bytes] = field(default_factory=dict)
    _changed: dict[str, threading.Event] = field(
        default_factory=lambda: defaultdict(threading.Event)
    )
    _arrived: Counter[str] = field(default_factory=Counter)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        self.key_value_set_bytes(key, value.encode(), allow_overwrite)

    def key_value_set_bytes(self, key: str, value: bytes, allow_overwrite: bool = False) -> None:
        with self._lock:
            self._count(len(key) + len(value))
            if key in self._values and not allow_overwrite:
                raise jax.errors.JaxRuntimeError(f"ALREADY_EXISTS: {key}")
            self._values[key] = value
            self._changed[key].set()

    def key_value_increment(self, key: str, by: int) -> int:
        with self._lock:
            self._count(len(key))
            number = int(self._values.get(key, b"0")) + by
            self._values[key] = str(number).encode()
            return number

    def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
        return self.blocking_key_value_get_bytes(key, milliseconds).decode()

    def blocking_key_value_get_bytes(self, key: str, milliseconds: int) -> bytes:
        with self._lock:
            changed = self._changed[key]
        # The threads share two cores: how long one waits says nothing.
        if not changed.wait(_DEADLINE_SECONDS):
            raise jax.errors.JaxRuntimeError(f"DEADLINE_EXCEEDED: {key}")
        with self._lock:
            self._count(len(key) + len(self._values[key]))
            return self._values[key]

    def key_value_try_get(self, key: str) -> str:
        with self._lock:
            self._count(len(key) + len(self._values.get(key, b"")))
            if key not in self._values:
                raise jax.errors.JaxRuntimeError(f"NOT_FOUND: {key}")
            return self._values[key].decode()

    def key_value_dir_get(self, place: str) -> list[tuple[str, str]]:
        return [(key, value.decode()) for key, value in self.key_value_dir_get_bytes(place)]

    def key_value_dir_get_bytes(self, place: str) -> list[tuple[str, bytes]]:
        with self._lock:
            found = [(k, v) for k, v in self._values.items() if k.startswith(f"{place}/")]
            self._count(sum(len(key) + len(value) for key, value in found))
            return found

    def key_value_delete(self, key: str) -> None:
        with self._lock:
            self._count(len(key))
            self._values.pop(key, None)
            self._changed.pop(key, None)

    def wait_at_barrier(self, name: str, milliseconds: int) -> None:
        with self._lock:
            self._count(len(name))
            self._arrived[name] += 1
            passed = self._changed[f"barrier {name}"]
            if self._arrived[name] == self.num_ranks:
                passed.set()
        if not passed.wait(_DEADLINE_SECONDS):
            raise jax.errors.JaxRuntimeError(f"DEADLINE_EXCEEDED: {name}")

    def _count(self, num_bytes: int) -> None:
        self.traffic.requests += 1
        self.traffic.num_bytes += num_bytes


class _Own(threading.local):
    """What a rank's process has once."""

    identity = Identity()

    def __init__(self) -> None:
        self.visits: Counter[str] = Counter()
        self.ledger = agreement.Ledger()


class _TheRanksOwn:
    """Stands where the code has one object for its process: for the thread's own."""

    def __init__(self, own: Callable[[], Any]) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own(), name)

    def __getitem__(self, key: str) -> Any:
        return self._own()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._own()[key] = value


@contextmanager
def _ranks_are_threads(store: Store, own: _Own) -> Iterator[None]:
    ledger = _TheRanksOwn(lambda: own.ledger)
    with (
        mock.patch.object(own_rank, "identity", lambda: own.identity),
        mock.patch.object(global_state, "client", store),
        mock.patch.object(distributed, "_visits", _TheRanksOwn(lambda: own.visits)),
        mock.patch.object(distributed, "ledger", ledger),
        mock.patch.object(agreement, "ledger", ledger),
    ):
        yield


def run(num_ranks: int, ranks_per_host: int, work: Callable[[Any], object]) -> Traffic:
    """Have all ranks of a job do something; gives what went through the store.

    Args:
        num_ranks: The ranks of the job.
        ranks_per_host: Of them on each host.
        work: What each does, given the store.

    Raises:
        ExceptionGroup: Some of them failed.
    """
    store, own, failures = Store(num_ranks), _Own(), list[Exception]()

    def one(rank: int) -> None:
        own.identity = Identity(rank, num_ranks, rank % ranks_per_host, ranks_per_host)
        try:
            work(store)
        except Exception as error:
            failures.append(error)

    size = threading.stack_size(_STACK_BYTES)
    try:
        with _ranks_are_threads(store, own):
            threads = [threading.Thread(target=one, args=[rank]) for rank in range(num_ranks)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        threading.stack_size(size)
    if failures:
        raise ExceptionGroup(f"{len(failures)} ranks failed", failures[:5])
    return store.traffic
