"""Failures whose cause is another rank: one that reduces something else, one that has ended."""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax._src.distributed import global_state

from trcomp.errors import DeviceError, PeerLostError
from trcomp.runtime import heartbeat
from trcomp.runtime.distributed import rank, world_size
from trcomp.runtime.graph import Collective
from trcomp.runtime.reductions import own_group

_BLAME_SECONDS = 5
_BROKEN_CONNECTION = re.compile(
    r"[Cc]onnection (closed|reset) by peer|Broken pipe|remote process exited"
)
"""In the words of gloo, of the kernel and of NCCL."""
_COMPARED = 20
_PATIENCE_SECONDS = 8
"""With the blame after it less than a heartbeat may be late: that would abort this rank."""

_numbers: Counter[str] = Counter()
"""How many collectives each group has had so far, by the group's ranks."""


def check_alike(collectives: Sequence[Collective], *, is_new: bool) -> None:
    """Compare a graph's collectives with those of the other ranks before it runs.

    Ranks that reduce different things wait for each other for ever, or get wrong numbers. The
    collectives of a group are numbered, however ranks cut them into graphs. The first of them are
    compared always, and a rank waits a while for what it is compared with, so that none enters a
    collective that cannot end. Later only those of new graphs are, and whoever comes later finds
    what the earlier one left.

    Args:
        collectives: What the graph does with other ranks, in order.
        is_new: Whether this rank runs the graph for the first time.

    Raises:
        DeviceError: Another rank does something else.
    """
    store = global_state.client
    if store is None:
        return
    everyone = tuple(range(world_size()))
    places = []
    for text, groups in collectives:
        group = everyone if groups is None else own_group(groups, rank())
        name = ",".join(map(str, group))
        _numbers[name] += 1
        heartbeat.note_collective(f"{text}, number {_numbers[name]} of ranks {name}")
        if _numbers[name] <= _COMPARED or is_new:
            place = f"trcomp/collectives/{name}/{_numbers[name]}"
            store.key_value_set(f"{place}/{rank()}", text)
            places.append((place, group, _numbers[name], text))
    for place, group, number, text in places:
        if number <= _COMPARED:
            # The first rank hears all others, the others hear the first: a difference has two
            # sides.
            for peer in group[1:] if rank() == group[0] else group[:1]:
                _await_key(store, f"{place}/{peer}")
        for key, theirs in store.key_value_dir_get(place):
            if theirs != text:
                raise _difference(group, number, text, int(key.rpartition("/")[2]), theirs)


def _await_key(store: Any, key: str) -> None:
    """Wait until a peer has left a key, or long enough to go on without it."""
    try:
        store.blocking_key_value_get(key, _PATIENCE_SECONDS * 1000)
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise


def _difference(
    group: Sequence[int], number: int, ours: str, peer: int, theirs: str
) -> DeviceError:
    return DeviceError(
        f"Ranks {rank()} and {peer} differ in collective {number} of ranks "
        f"{', '.join(map(str, group))}: rank {rank()} has {ours}, rank {peer} has {theirs}.",
        "Every rank must make the same calls in the same order, on tensors of the same sizes; do "
        "not put a collective or an optimizer step under `if rank == 0`.",
    )


@contextlib.contextmanager
def blaming_peers() -> Iterator[None]:
    """Tell the loss of a peer apart from a failure of this rank's own.

    It waits a moment before it raises: a peer that was killed left no word of its own, and whoever
    started the ranks should see it end first and blame it.

    Raises:
        PeerLostError: A collective failed because its connection broke.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if world_size() == 1 or not _BROKEN_CONNECTION.search(str(error)):
            raise
        time.sleep(_BLAME_SECONDS)
        raise PeerLostError(
            f"Rank {rank()} lost another rank, which ended during a collective.",
            "See the logs of the other ranks: one of them failed first, or was killed.",
        ) from error
