"""Failures whose cause is another rank: one that does something else, one that has ended."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
from jax._src.distributed import global_state

from trcomp import error_file, flags
from trcomp.errors import DeviceError, PeerLostError, RanksDifferError, UnevenDataError
from trcomp.runtime import agreement, distributed, heartbeat, questions, report, source_lines
from trcomp.runtime.agreement import Begun, Record, Row
from trcomp.runtime.capture.code import script_frame
from trcomp.runtime.distributed import rank, world_size
from trcomp.runtime.graph import Collective
from trcomp.runtime.in_flight import has_finished
from trcomp.runtime.reductions import own_group
from trcomp.runtime.waiting import Wait, has_come, waiting, watch

_BLAME_SECONDS = 2
"""Ending after it, a rank is gone before JAX's coordinator misses the lost one and aborts it."""
_BROKEN_CONNECTION = re.compile(
    r"[Cc]onnection (closed|reset) by peer|Broken pipe|remote process exited"
)
"""In the words of gloo, of the kernel and of NCCL."""
_ALWAYS_COMPARED = frozenset(4**power for power in range(24))
"""The numbers of collectives that are compared though their graph is known: ever rarer ones."""
_PATIENCE_SECONDS = 8
"""How long a graph waits, before it runs, for ranks to tell what they do."""
_GRACE_SECONDS = 0.25
"""Ranks of one mind come within it; who tells nothing for longer is asked."""
_OWN_REASON_SECONDS = 0.7
"""A rank that is told of another's failure may be about to find the reason itself."""
_ANSWER_SECONDS = 5
"""How long a rank that differs waits for what the other has recorded."""


class _Latest:
    """The last graph with collectives."""

    operations: Callable[[], list[Row]] = list


@dataclass
class Comparison:
    """A collective that is compared, which has all before it in its digest.

    Attributes:
        begun: It, as this rank has it.
        unheard: The ranks that have not told theirs.
        asked: Whether they have been asked.
    """

    begun: Begun
    unheard: set[int]
    asked: bool = False


_demands: dict[tuple[str, int], set[int]] = {}
"""Collectives, by group and number, that others want to compare once they are begun."""


def tell(
    collectives: Sequence[Collective],
    *,
    is_new: bool,
    operations: Callable[[], list[Row]] = list,
) -> list[Comparison]:
    """Tell the other ranks what a graph does with them, before it is compiled and runs.

    Ranks that reduce different things wait for each other for ever, or get wrong numbers. The
    collectives of a group are numbered, however ranks cut them into graphs, and the last of each
    new graph is compared, and those numbered 1, 4, 16 and so on: often while a job is young, and at
    little cost to the coordinator of thousands of ranks. A rank for which the same collectives are
    nothing new tells them when it is asked.

    Args:
        collectives: What the graph does with other ranks, in order.
        is_new: Whether this rank runs the graph for the first time: what differs from those that
            have told already is then found before it is compiled.
        operations: Gives all that the graph does, to be asked when ranks differ.

    Returns:
        For `await_alike`, before the graph runs.

    Raises:
        RanksDifferError: Another rank does something else.
    """
    store = global_state.client
    if store is None:
        return []
    _Latest.operations = operations
    everyone = range(world_size())
    compared: dict[str, Begun] = {}
    comparisons = []
    for text, groups, line in collectives:
        group = everyone if groups is None else own_group(groups, rank())
        begun = agreement.ledger.begin(group, text, line)
        heartbeat.note_collective(f"{text}, number {begun.number} of ranks {begun.group}")
        if is_new or begun.number in _ALWAYS_COMPARED:
            compared[begun.group] = begun
        if asking := _demands.pop((begun.group, begun.number), None):
            comparisons.append(Comparison(begun, asking))
    comparisons += [Comparison(begun, set(_heard(begun.ranks))) for begun in compared.values()]
    for comparison in comparisons:
        _show(store, comparison.begun)
    if is_new:
        _hear(store, comparisons, 2 * _GRACE_SECONDS)
    return comparisons


def await_alike(comparisons: Sequence[Comparison]) -> None:
    """Wait a while for what other ranks tell, so that none enters a collective that cannot end.

    Args:
        comparisons: Of the graph that is to run.

    Raises:
        RanksDifferError: Another rank does something else.
    """
    if comparisons:
        _hear(global_state.client, comparisons, _PATIENCE_SECONDS)


def _hear(store: Any, comparisons: Sequence[Comparison], seconds: float) -> None:
    """Compare with all ranks that tell within this time."""
    deadline = time.monotonic() + seconds
    with waiting():
        for comparison in comparisons:
            _compare(store, comparison, min(deadline, time.monotonic() + _GRACE_SECONDS))
            if not comparison.asked:
                comparison.asked = True
                for peer in comparison.unheard:
                    begun = comparison.begun
                    questions.ask(store, peer, f"{begun.group} {begun.number} {rank()}")
            _compare(store, comparison, deadline)


def _compare(store: Any, comparison: Comparison, deadline: float) -> None:
    ours, unheard = comparison.begun, comparison.unheard
    while unheard:
        # One is waited for, and whatever has come with it is read at once.
        key = f"{_place(ours)}/{max(unheard)}"
        found = {key: _awaited(store, key, max(deadline - time.monotonic(), 0.001))}
        in_time = bool(found[key])
        if len(unheard) > 1:
            found.update(store.key_value_dir_get(_place(ours)))
        for peer in sorted(unheard):
            digest, _, line = found.get(f"{_place(ours)}/{peer}", "").partition(" ")
            if digest:
                unheard.discard(peer)
            if digest not in ("", ours.digest):
                theirs = ours._replace(digest=digest, line=line, text="something else")
                raise _differing(store, ours, peer, theirs)
        if not in_time:
            return


def _place(begun: Begun) -> str:
    return f"trcomp/collectives/{begun.group}/{begun.number}"


def _show(store: Any, begun: Begun) -> None:
    store.key_value_set(f"{_place(begun)}/{rank()}", f"{begun.digest} {begun.line}", True)


_OPERATIONS = "operations"


def _answer(question: str) -> None:
    """Answer another rank: what this one has recorded, or what it begins as number so and so."""
    store = global_state.client
    if store is None:
        return
    if question == _OPERATIONS:
        _tell_operations(store)
        return
    if question.startswith(distributed.FAILED):
        _end_with(question)
        return
    group, number, peer = question.split(" ")
    wanted = group, int(number)
    _demands.setdefault(wanted, set()).add(int(peer))  # First: it may be begun meanwhile.
    begun = agreement.ledger.found(*wanted)
    if begun is not None:
        _demands.pop(wanted, None)
        _show(store, begun)


def _heard(group: Sequence[int]) -> Sequence[int]:
    """Whom of a group this rank hears: the first hears all, the others the first.

    So a difference has two sides, and what is said grows with the ranks, not with their square.
    """
    return group[1:] if rank() == group[0] else group[:1]


def _awaited(store: Any, key: str, seconds: float) -> str:
    """What a peer has left, or will within this time; empty if nothing."""
    try:
        return str(store.blocking_key_value_get(key, int(seconds * 1000)))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise
        return ""


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


def _tell_operations(store: Any) -> None:
    told = agreement.ledger.kept(), _Latest.operations()
    packed = base64.b64encode(zlib.compress(json.dumps(told).encode())).decode()
    store.key_value_set(f"trcomp/operations/{rank()}", packed, True)


def _asked_operations(store: Any, peer: int) -> tuple[list[Begun], list[Row]]:
    """The collectives of a peer and the operations of its last graph; none if it is gone."""
    questions.ask(store, peer, _OPERATIONS)
    answer = _awaited(store, f"trcomp/operations/{peer}", _ANSWER_SECONDS)
    if not answer:
        return [], []
    last, rows = json.loads(zlib.decompress(base64.b64decode(answer)))
    return [Begun(*begun) for begun in last], [(text, line) for text, line in rows]


def _differing(store: Any, ours: Begun, peer: int, theirs: Begun) -> RanksDifferError:
    """Two ranks' collectives differ; says where their graphs begin to."""
    distributed.tell(agreement.ledger.record())
    _tell_operations(store)
    last, rows = _asked_operations(store, peer)
    ours, theirs = agreement.difference(agreement.ledger.kept(), last) or (ours, theirs)
    message = (
        f"Ranks {rank()} and {peer} differ in collective {ours.number} of ranks "
        f"{ours.group.replace(',', ', ')}: rank {rank()} has "
        f"{agreement.shown((ours.text, ours.line))}, rank {peer} has "
        f"{agreement.shown((theirs.text, theirs.line))}."
    )
    begin = agreement.first_difference(_Latest.operations(), rows) if rows else None
    if begin is not None:
        at, mine, others = begin
        message += (
            f"\n  Their graphs differ from operation {at} on: rank {rank()} records "
            f"{agreement.shown(mine)}; rank {peer} records {agreement.shown(others)}."
        )
    return RanksDifferError(
        message,
        "Every rank must make the same calls in the same order, on tensors of the same sizes; do "
        "not put a collective or an optimizer step under `if rank == 0`.",
    )


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
    heard = {peer for group in ours.counts for peer in _heard(agreement.ranks_of(group))}
    for peer, text in sorted(_left(store, sorted(heard)).items()):
        theirs = Record.from_json(text)
        pair = agreement.difference(ours.last, theirs.last)
        if pair is not None:
            return _differing(store, pair[0], peer, pair[1])
        gone = theirs.ended or (theirs.place and not has_come(theirs.place))
        begun = agreement.awaited_in_vain(ours, peer, theirs) if gone else None
        if begun is not None:
            return _uneven(begun, peer, theirs)
    return None


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
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    trace = None
    while frame is not None:
        trace = TracebackType(trace, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    error.__traceback__ = trace
    sys.excepthook(type(error), error, trace)
    if path := flags.ERROR_FILE.get():
        error_file.write(Path(path), error, rank=rank(), host=report.host_name())
    if flags.REPORT_DIR.get():
        report.write()
    sys.stdout.flush()
    sys.stderr.flush()
    distributed.abandon()
    os._exit(1)


def _script_line() -> str:
    """Where in the script the main thread is."""
    frame = script_frame(sys._current_frames().get(threading.main_thread().ident or 0))
    return "" if frame is None else source_lines.shown(frame)


def _begin() -> None:
    """The ranks have joined."""
    watch(_look)
    questions.listen(global_state.client, rank(), _answer)


def _end_with(words: str) -> None:
    """Another rank has failed: end too, before the coordinator goes and aborts this one."""
    distributed.pass_on_failure(words)
    time.sleep(_OWN_REASON_SECONDS)
    if distributed.own_failure():
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
        if world_size() == 1 or not _BROKEN_CONNECTION.search(str(error)):
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
