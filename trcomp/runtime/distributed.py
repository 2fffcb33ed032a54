"""The ranks of a job: joining them, who this one is, waiting for the others.

What is not tensors travels over JAX's coordination service, which the host of rank 0 serves.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import os
import socket
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax

# The public API has no key-value store and no barrier that works without devices.
from jax._src.distributed import global_state
from jaxlib import _jax
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous as torch_rendezvous

from trcomp import error_file, flags
from trcomp.env import gpus, interfaces, variables
from trcomp.errors import DeviceError
from trcomp.runtime import heartbeat, own_rank, questions, waiting
from trcomp.runtime.agreement import Record, ledger

_HEARTBEAT_SECONDS = 12
"""A rank that is silent so long is dead: its peers end instead of waiting in a collective.

JAX asks twice in this time and looks once a second, so they end 7 to 13 seconds after it.
"""
_JOIN_SECONDS = 900
"""Hosts of one job start minutes apart."""
_LEAVE_SECONDS = 24 * 3600
"""At a good end ranks wait for the last, which may still evaluate or save."""
_RENDEZVOUS_SECONDS = 1800
_LINGER_SECONDS = 3
"""How long at most the rank that serves the others outlives its own failure."""
_LAST_SECONDS = 1.5
"""From a rank's word that it leaves to the end of its process, which Python takes down first."""
FAILED = "failed"
"""Begins what a rank that has failed tells the others; its number and why follow."""
_FAN_OUT = 8
"""So many ranks each rank tells of a failure: all of 8,000 are reached in five rounds."""
_GONE = "trcomp/gone"
"""Where ranks say that they leave after a failure."""
_ALL_ENDED = "trcomp/all-ended"
"""The key that rank 0 sets once all have ended."""
_NOTICE_SECONDS = 60
"""How long a rank that has ended waits for another before it says so."""


def join(store: Store | None = None) -> None:
    """Join the other ranks, unless this process has; comes before the XLA client starts.

    Args:
        store: Where the ranks can leave word for each other, if nobody told them where to meet.

    Raises:
        DeviceError: The process has a rank among several but nobody said where they meet, or the
            others did not come.
    """
    if global_state.client is not None:
        return
    identity = variables.identity(os.environ)
    if identity.world_size == 1:
        return
    coordinator = flags.COORDINATOR.get() or _agreed_coordinator(identity, store)
    if not coordinator:
        raise DeviceError(
            f"This is rank {identity.rank} of {identity.world_size}, but "
            f"{flags.COORDINATOR.name} does not say where the ranks meet.",
            "Start the script through trcomp or torchrun, or set "
            f"{flags.COORDINATOR.name}=address:port, the same on every rank, an address of rank "
            "0's host.",
        )
    _Joined.coordinator = coordinator
    # Registered after JAX's own, which waits for the other ranks, so it is called before it.
    atexit.register(_leave)
    jax.config.update("jax_num_cpu_devices", 1)
    # Its SIGTERM handler would keep a stopped worker alive.
    jax.config.update("jax_enable_preemption_service", False)
    _keep_gloo_on_the_jobs_interface(identity, coordinator)
    bind_address = interfaces.bind_address(coordinator, os.environ)
    if identity.rank == 0:
        _check_free(bind_address or coordinator)
    try:
        jax.distributed.initialize(
            coordinator,
            identity.world_size,
            identity.rank,
            _own_gpu(identity),
            cluster_detection_method="deactivate",
            coordinator_bind_address=bind_address,
            initialization_timeout=_JOIN_SECONDS,
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=_LEAVE_SECONDS,
        )
    except jax.errors.JaxRuntimeError as error:
        raise DeviceError(
            f"Rank {identity.rank} did not find the others at {coordinator} within "
            f"{_JOIN_SECONDS} s: {error}",
            "See the other ranks' logs: one may have failed, or its host cannot be reached.",
        ) from error
    _check_job(identity.rank)
    own_rank.keep()
    for begin in when_joined:
        begin()
    # Called before what has begun is ended: a rank that waits for the others still hears them.
    atexit.unregister(_leave)
    atexit.register(_leave)


def _check_free(place: str) -> None:
    """The service that cannot listen ends the process without a word."""
    host, _, port = place.rpartition(":")
    address = host.strip("[]")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.create_server((address, int(port)), family=family).close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return  # A name of rank 0's host that only others can reach; JAX may do better.
        raise DeviceError(
            f"Rank 0 cannot serve the others at {place}: another process listens there.",
            "`ss -ltnp` shows which one; a process of an earlier job may have been left.",
        ) from error


when_joined: list[Callable[[], None]] = []
"""Called once the ranks have joined."""


def _keep_gloo_on_the_jobs_interface(identity: variables.Identity, coordinator: str) -> None:
    """By itself gloo listens at the address that the host's own name has, if it has one."""
    interface = variables.gloo_interface(os.environ)
    if not interface:
        alone = identity.local_world_size == identity.world_size
        host = coordinator.rpartition(":")[0]
        interface = interfaces.LOOPBACK if alone else interfaces.toward(host)
    if interface:
        os.environ.update(variables.with_gloo_interface(interface))
        make = _jax.make_gloo_tcp_collectives
        _jax.make_gloo_tcp_collectives = partial(make, interface=interface)


def _check_job(rank: int) -> None:
    """Refuse the ranks of another job, which may listen where this one's should.

    Raises:
        DeviceError: They are another job's.
    """
    store = global_state.client
    token = interfaces.job_token(flags.JOB_NAME.get(), flags.TOPOLOGY.get())
    assert store is not None
    if rank == 0:
        store.key_value_set("trcomp/job", token)
    elif store.blocking_key_value_get("trcomp/job", _JOIN_SECONDS * 1000) != token:
        raise DeviceError(
            f"Rank {rank} has met the ranks of another job at {_Joined.coordinator}.",
            "Another job's rank 0 listens there; end it, or give the jobs addresses of their own.",
        )


class _Joined:
    coordinator = ""
    """Where the ranks have met."""
    store: Any = None
    """Rank 0 may serve it: it must outlive the meeting."""
    others_told = False
    """Whether this rank has told the others of a failure."""


def _agreed_coordinator(identity: variables.Identity, store: Store | None) -> str:
    """Where ranks meet that trcomp did not start: rank 0 says so over the store of torchrun's."""
    master = variables.master(os.environ)
    if store is None:
        if not master:
            return ""
        found = torch_rendezvous("env://", identity.rank, identity.world_size)
        store = _Joined.store = next(iter(found))[0]
    store = PrefixStore("trcomp", store)
    if identity.rank == 0:
        host = master or socket.gethostname()
        with socket.socket() as probe:
            probe.bind(("", 0))
            store.set("coordinator", f"{host}:{probe.getsockname()[1]}")
    coordinator = store.get("coordinator").decode()
    # gRPC would send the ranks' own traffic to a proxy that is meant for downloads.
    os.environ.update(variables.without_proxy(os.environ, coordinator.rpartition(":")[0]))
    return coordinator


def _own_gpu(identity: variables.Identity) -> list[int] | None:
    """The GPU of a rank that sees all of its host's; None where trcomp has chosen."""
    if flags.COORDINATOR.get() or len(gpus.found(os.environ)) < 2:
        return None
    return [identity.local_rank]


def coordinator_host() -> str:
    """The host that the ranks meet at: rank 0's."""
    join()
    return _Joined.coordinator.rpartition(":")[0]


def take_rank(rank: int, world_size: int, hosts: Sequence[str]) -> None:
    """Be a rank from here on.

    Args:
        rank: This process among all.
        world_size: All.
        hosts: The host of each rank.
    """
    here = [peer for peer, host in enumerate(hosts) if host == hosts[rank]]
    identity = variables.Identity(rank, world_size, here.index(rank), len(here))
    os.environ.update(variables.identifying(identity))


def abandon() -> None:
    """Leave without waiting for the other ranks; for a rank that has failed.

    At a good end the ranks wait for each other. One that has failed would wait for peers that are
    stuck in a collective with it; they are told instead.
    """
    store, failed = global_state.client, failure()
    if store is not None:
        if failed is not None and not _Joined.others_told:
            pass_on_failure(f"{FAILED} {failed[0]} {failed[1]}")
        if rank() == 0:
            _outlive_peers(store)
        else:
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                store.key_value_set_bytes(f"{_GONE}/{rank()}", b"")
    for held in (global_state.client, global_state.service):
        if held is not None:
            # Its destructor waits for the others too: it must not run.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
    global_state.client = None
    global_state.service = None


def pass_on_failure(words: str) -> None:
    """Tell those ranks of a failure that are this one's to tell; they go on with it.

    Args:
        words: `FAILED`, the rank that has failed, and why.
    """
    _Joined.others_told = True
    _, failed, *_ = words.split(" ", 2)
    first = _FAN_OUT * rank() + 1
    told = set(range(first, min(first + _FAN_OUT, world_size())))
    if int(failed) == rank():
        told.add(0)
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # Who serves the store may be gone.
        for peer in sorted(told - {rank(), int(failed)}):
            questions.ask(global_state.client, peer, words)


def _outlive_peers(store: Any) -> None:
    """Wait until the other ranks have ended: one that has not when the service goes is aborted."""
    deadline = time.monotonic() + _LINGER_SECONDS
    for peer in range(1, world_size()):
        left = max(deadline - time.monotonic(), 0.001)
        try:
            store.blocking_key_value_get_bytes(f"{_GONE}/{peer}", int(left * 1000))
        except jax.errors.JaxRuntimeError:
            return
    time.sleep(_LAST_SECONDS)


def _leave() -> None:
    """End well with the others, or at once after a failure."""
    if failure():
        abandon()
    elif global_state.client is not None:
        _await_peers(global_state.client)


def failure() -> tuple[int, str] | None:
    """The rank that has failed, as far as this process knows, and why; None if none has.

    Python keeps an exception that ended the script, and a worker writes its error file, which the
    ranks share that a script starts itself.
    """
    if (raised := getattr(sys, "last_value", None)) is not None:
        return rank(), error_file.exception_line(raised)
    path = flags.ERROR_FILE.get()
    if path and Path(path).exists():
        report = error_file.read(Path(path))
        if report is None:
            return rank(), "its error file cannot be read"
        return rank() if report.rank is None else report.rank, report.exception
    return None


def _await_peers(store: Any) -> None:
    """Wait until every rank has come to its end, and say so if one takes long.

    JAX would wait in silence; ranks that make different numbers of steps wait for each other for
    ever, one here and one in a collective.
    """
    tell(ledger.record(ended=True))
    store.key_value_set_bytes(f"trcomp/ended/{rank()}", b"1")
    heartbeat.note_end()
    # Rank 0 hears all others and they hear it: what is said grows with the ranks, not their square.
    peers = range(1, world_size()) if rank() == 0 else range(1)
    awaited = {f"trcomp/ended/{peer}": f"rank {peer}" for peer in peers}
    if rank() > 0:
        awaited[_ALL_ENDED] = "other ranks"
    told = False
    for key, who in awaited.items():
        while not _is_there(store, key):
            if not told:
                print(
                    f"trcomp: rank {rank()} has ended and waits for {who}. If that lasts, "
                    "the ranks made different numbers of steps: give each as many batches.",
                    file=sys.stderr,
                    flush=True,
                )
            told = True
    if rank() == 0:
        store.key_value_set_bytes(_ALL_ENDED, b"1")


def tell(record: Record) -> None:
    """Leave word for the other ranks how far this one has come."""
    if global_state.client is not None:
        global_state.client.key_value_set(record_key(rank()), record.to_json(), True)


RECORDS = "trcomp/record"
"""Where the ranks' words are found."""


def record_key(peer: int) -> str:
    """Where a rank's word is found."""
    return f"{RECORDS}/{peer}"


def _is_there(store: Any, key: str) -> bool:
    try:
        store.blocking_key_value_get_bytes(key, _NOTICE_SECONDS * 1000)
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise
        return False
    return True


def rank() -> int:
    """This process's rank among all of the job's."""
    return own_rank.identity().rank


def local_rank() -> int:
    """This process's rank on its host."""
    return own_rank.identity().local_rank


def world_size() -> int:
    """Number of ranks of the job."""
    return own_rank.identity().world_size


_visits: Counter[str] = Counter()


def rendezvous(tag: str, payload: bytes = b"") -> list[bytes]:
    """Wait until every rank is here; the ranks' payloads in order.

    Args:
        tag: Which meeting it is; every rank names the same ones in the same order.
        payload: Bytes for the other ranks.

    Raises:
        DeviceError: A rank did not come.
    """
    if world_size() == 1:
        return [payload]
    join()
    store = global_state.client
    assert store is not None
    _visits[tag] += 1
    place, before = (f"trcomp/{tag}/{visit}" for visit in (_visits[tag], _visits[tag] - 1))
    try:
        store.key_value_set_bytes(f"{place}/{rank()}", payload)
        with waiting.waiting(waiting.arrive(tag)):
            store.wait_at_barrier(place, _RENDEZVOUS_SECONDS * 1000)
        payloads = _gathered(store, place)
        # Everyone is here, so everyone has read what was left at the meeting before.
        store.key_value_delete(f"{before}/{rank()}")
        if rank() == 0:
            store.key_value_delete(f"{before}{_GATHERED}")
    except jax.errors.JaxRuntimeError as error:
        raise DeviceError(
            f"Rank {rank()} waited at {tag!r} and not every rank came: {error}",
            "Every rank must make the same calls; do not put this one under `if rank == 0`.",
        ) from error
    return payloads


_GATHERED = " gathered"
"""Behind a place: what all have left there."""


def _gathered(store: Any, place: str) -> list[bytes]:
    """What every rank has left at a place, in order.

    Rank 0 reads it all and leaves it in one piece, mostly a small one: if each read it all one by
    one, what the store sends would grow with the square of the ranks.
    """
    if rank() > 0:
        limit = _RENDEZVOUS_SECONDS * 1000
        return _unpacked(store.blocking_key_value_get_bytes(f"{place}{_GATHERED}", limit))
    found = store.key_value_dir_get_bytes(place)
    payloads = {int(key.rpartition("/")[2]): value for key, value in found}
    ordered = [payloads[peer] for peer in range(world_size())]
    store.key_value_set_bytes(f"{place}{_GATHERED}", _packed(ordered))
    return ordered


def _packed(payloads: Sequence[bytes]) -> bytes:
    return zlib.compress(b"".join(len(one).to_bytes(8) + one for one in payloads))


def _unpacked(packed: bytes) -> list[bytes]:
    payloads, rest = [], memoryview(zlib.decompress(packed))
    while rest:
        end = 8 + int.from_bytes(rest[:8])
        payloads.append(bytes(rest[8:end]))
        rest = rest[end:]
    return payloads
