"""What this rank waits for the others in, and a thread that looks into it if that lasts."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_LONG_SECONDS = 4.0
_TICK_SECONDS = 1.0
_MOST_SECONDS = 64.0
"""Between two looks at one wait: it may be another rank that compiles or evaluates for long."""
_MOST_PATIENCE_SECONDS = 16.0
"""Before the first look at a wait."""


@dataclass(frozen=True, eq=False)
class Wait:
    """A wait that has begun.

    Attributes:
        place: The meeting of all ranks that this one has come to; empty while it waits for the
            device, which may be in a collective.
        since: By `time.monotonic`.
    """

    place: str
    since: float


class _State:
    current: Wait | None = None
    stop: threading.Event | None = None


_visits: Counter[str] = Counter()


@contextlib.contextmanager
def waiting(place: str = "") -> Iterator[None]:
    """The block waits for other ranks, or may."""
    before, _State.current = _State.current, Wait(place, time.monotonic())
    try:
        yield
    finally:
        _State.current = before


def arrive(tag: str) -> str:
    """This rank has come to a meeting of all ranks; its place, for `waiting`.

    Args:
        tag: Which meeting it is; every rank comes to the same ones in the same order.
    """
    _visits[tag] += 1
    return f"{tag} #{_visits[tag]}"


def has_come(place: str) -> bool:
    """Whether this rank has come to a meeting, or to a later one of the tag."""
    tag, _, visit = place.rpartition(" #")
    return _visits[tag] >= int(visit)


def watch(look: Callable[[Wait], None]) -> None:
    """Have waits looked into that last, now and then less often, in a thread of their own.

    Args:
        look: Called with the wait while it lasts.
    """
    if _State.stop is not None:
        return
    _State.stop = threading.Event()
    thread = threading.Thread(
        target=_watch, args=[look, _State.stop], name="trcomp-waiting", daemon=True
    )
    thread.start()
    # It must not talk to the other ranks while this one leaves them.
    atexit.register(_end, thread, _State.stop)


def _watch(look: Callable[[Wait], None], stop: threading.Event) -> None:
    looked: Wait | None = None
    patience = pause = _LONG_SECONDS
    while not stop.wait(_TICK_SECONDS):
        wait = _State.current
        if wait is not looked:
            if pause > patience:
                # It was looked into and has ended well. Where steps last so long, looking would be
                # all that thousands of ranks say to the coordinator.
                patience = min(2 * patience, _MOST_PATIENCE_SECONDS)
            looked, pause = wait, patience
        if wait is not None and time.monotonic() - wait.since >= pause:
            pause = min(2 * pause, pause + _MOST_SECONDS)
            look(wait)


def _end(thread: threading.Thread, stop: threading.Event) -> None:
    stop.set()
    thread.join(_LONG_SECONDS)
