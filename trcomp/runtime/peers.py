"""Failures whose cause is another rank: one that does something else, one that has ended."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
from jax._src.distributed import global_state

from trcomp import error_file, flags
from trcomp.errors import DeviceError, PeerLostError, UnevenDataError
from trcomp.lost_peer import BROKEN_CONNECTION
from trcomp.runtime import agreement, comparing, distributed, questions, report, source_lines
from trcomp.runtime.agreement import Begun, Record
from trcomp.runtime.capture.code import is_script, script_frame
from trcomp.runtime.distributed import rank, world_size
from trcomp.runtime.in_flight import has_finished
from trcomp.runtime.waiting import Wait, has_come, waiting, watch

_BLAME_SECONDS = 2
"""Ending after it, a rank is gone before JAX's coordinator misses the lost one and aborts it."""
_OWN_REASON_SECONDS = 0.7
"""A rank that is told of another's failure may be about to find the reason itself."""


def _look(wait: Wait) -> None:
    """This rank has waited long: end it if what it waits for cannot come."""
    store = global_state.client
    if store is None or (wait.place and not has_finished()):
        return
    ours = agreement.ledger.record(place=wait.place, line=_script_line())
    error = None
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # Who serves the store may be gone.
        distributed.tell(ours)
        error = None if wait.place else _verdict(store, ours)
    if error is not None:
        _fail(error)


def _verdict(store: Any, ours: Record) -> DeviceError | None:
    """Why what this rank waits for on its device cannot come; None if nothing says so."""
    heard = {peer for group in ours.counts for peer in comparing.heard(agreement.ranks_of(group))}
    for peer, text in sorted(_left(store, sorted(heard)).items()):
        theirs = Record.from_json(text)
        pair = agreement.difference(ours.last, theirs.last)
        if pair is not None:
            return comparing.differing(store, pair[0], peer, pair[1])
        gone = theirs.ended or (theirs.place and not has_come(theirs.place))
        begun = agreement.awaited_in_vain(ours, peer, theirs) if gone else None
        if begun is not None:
            return _uneven(begun, peer, theirs)
    return None


def _left(store: Any, peers: Sequence[int]) -> dict[int, str]:
    """The words that peers have left; nothing of one that has not, or if the store is gone."""
    keys = {distributed.record_key(peer): peer for peer in peers}
    try:
        if len(peers) > 1:
            found = store.key_value_dir_get(distributed.RECORDS)
        else:
            found = [(key, store.key_value_try_get(key)) for key in keys]
    except jax.errors.JaxRuntimeError:
        return {}
    return {keys[key]: text for key, text in found if key in keys}


def _uneven(begun: Begun, peer: int, theirs: Record) -> UnevenDataError:
    where = f" at {theirs.line}" if theirs.line else ""
    done = f"is at {theirs.place.rpartition(' #')[0]!r}{where}" if theirs.place else "has ended"
    what = agreement.shown((begun.text, begun.line))
    return UnevenDataError(
        f"Rank {rank()} waits for rank {peer} in collective {begun.number}, {what}; rank {peer} "
        f"{done} after {theirs.counts.get(begun.group, 0)} of them: the ranks made different "
        "numbers of steps.",
        "Give each rank as many batches: DistributedSampler(drop_last=True), or a loader with "
        'uneven="shortest", which ends each pass with the rank that has the fewest.',
    )


def _fail(error: DeviceError) -> None:
    """End this process, whose main thread will never return, as if that had raised."""
    trace = error.__traceback__ = _main_thread()
    sys.excepthook(type(error), error, trace)
    sys.last_value = error  # As Python does for an exception that nobody catches.
    if path := flags.ERROR_FILE.get():
        error_file.write(Path(path), error, rank=rank(), host=report.host_name())
    if flags.REPORT_DIR.get():
        report.write()
    sys.stdout.flush()
    sys.stderr.flush()
    distributed.abandon()
    os._exit(1)


def _main_thread() -> TracebackType | None:
    """Where the main thread is, from the script's outermost frame on, if it runs any."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    trace = below = None
    while frame is not None:
        trace = TracebackType(trace, frame, frame.f_lasti, frame.f_lineno)
        if is_script(frame.f_code):
            below = trace
        frame = frame.f_back
    return below or trace


def _script_line() -> str:
    """Where in the script the main thread is."""
    frame = script_frame(sys._current_frames().get(threading.main_thread().ident or 0))
    return "" if frame is None else source_lines.shown(frame)


def _begin() -> None:
    """The ranks have joined."""
    watch(_look)
    questions.listen(global_state.client, rank(), _answer)


def _answer(question: str) -> None:
    """Another rank asks, or says that one has failed."""
    if question.startswith(distributed.FAILED):
        _end_with(question)
    else:
        comparing.answer(question)


def _end_with(words: str) -> None:
    """Another rank has failed: end too, before the coordinator goes and aborts this one."""
    distributed.pass_on_failure(words)
    time.sleep(_OWN_REASON_SECONDS)
    failed = distributed.failure()
    if failed is not None and failed[0] == rank():
        return
    _, peer, why = words.split(" ", 2)
    _fail(
        PeerLostError(
            f"Rank {rank()} ends, since rank {peer} has failed: {why.partition(chr(10))[0]}",
            f"See the log of rank {peer}.",
        )
    )


distributed.when_joined.append(_begin)


@contextlib.contextmanager
def blaming_peers() -> Iterator[None]:
    """Tell the loss of a peer apart from a failure of this rank's own.

    It waits a moment before it raises: a peer that was killed left no word of its own, and whoever
    started the ranks should see it end first and blame it.

    Raises:
        RanksDifferError: A collective failed because two ranks meant different ones.
        UnevenDataError: Another rank has ended, and this one has more steps.
        PeerLostError: A collective failed because its connection broke.
    """
    try:
        with waiting():
            yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # The latter of what runs at once.
        if world_size() == 1 or not BROKEN_CONNECTION.search(str(error)):
            raise
        raise _blamed() from error


def _blamed() -> DeviceError:
    """Why a connection broke."""
    store, ours = global_state.client, agreement.ledger.record()
    deadline = time.monotonic() + _BLAME_SECONDS
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # Who serves the store may be gone.
        distributed.tell(ours)
        while time.monotonic() < deadline:
            if (verdict := _verdict(store, ours)) is not None:
                return verdict
            time.sleep(0.5)
    time.sleep(max(deadline - time.monotonic(), 0))
    return PeerLostError(
        f"Rank {rank()} lost another rank, which ended during a collective.",
        "See the logs of the other ranks: one of them failed first, or was killed.",
    )
