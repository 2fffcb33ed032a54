"""Failures whose cause is another rank: one that reduces something else, one that has ended."""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

import jax
from jax._src.distributed import global_state

from trcomp.errors import DeviceError, PeerLostError
from trcomp.runtime.distributed import rank, world_size

_BLAME_SECONDS = 5
_BROKEN_CONNECTION = re.compile(
    r"[Cc]onnection (closed|reset) by peer|Broken pipe|remote process exited"
)
"""In the words of gloo, of the kernel and of NCCL."""
_COMPARED_RUNS = 20
_PATIENCE_SECONDS = 10

_runs = itertools.count(1)


def check_alike(describe: Callable[[], list[str]], *, is_new: bool) -> None:
    """Compare a graph's collectives with the other ranks' before it runs.

    Ranks that reduce different things wait for each other for ever, or get wrong numbers. In the
    job's first runs every graph is compared, and a rank waits a while for what it is compared with,
    so that none enters a collective that cannot end. Later only new graphs are, and whoever comes
    later finds what the earlier one left.

    Args:
        describe: What the graph reduces, in order, as text.
        is_new: Whether this rank runs the graph for the first time.

    Raises:
        DeviceError: Another rank's graph has other collectives.
    """
    run = next(_runs)
    store = global_state.client
    if store is None or (run > _COMPARED_RUNS and not is_new):
        return
    collectives = describe()
    place = f"trcomp/collectives/{run}"
    store.key_value_set(f"{place}/{rank()}", "\n".join(collectives))
    if run <= _COMPARED_RUNS:
        # The first rank hears all others, the others hear the first: a difference has two sides.
        for peer in range(1, world_size()) if rank() == 0 else (0,):
            _await_key(store, f"{place}/{peer}")
    for key, text in store.key_value_dir_get(place):
        theirs = text.split("\n")
        if theirs != collectives:
            raise _difference(run, collectives, int(key.rpartition("/")[2]), theirs)


def _await_key(store: Any, key: str) -> None:
    """Wait until a peer has left a key, or long enough to go on without it."""
    try:
        store.blocking_key_value_get(key, _PATIENCE_SECONDS * 1000)
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise


def _difference(run: int, ours: list[str], peer: int, theirs: list[str]) -> DeviceError:
    pairs = enumerate(zip_longest(ours, theirs, fillvalue="none"), start=1)
    number, (here, there) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
    return DeviceError(
        f"Ranks {rank()} and {peer} differ in collective {number} of the graph that each runs as "
        f"its {run}th with collectives: rank {rank()} has {here}, rank {peer} has {there}.",
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
