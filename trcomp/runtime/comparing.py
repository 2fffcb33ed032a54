"""Comparing what ranks are about to do with each other, before they do it."""

from __future__ import annotations

import base64
import json
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax._src.distributed import global_state

from trcomp.errors import RanksDifferError
from trcomp.runtime import agreement, distributed, heartbeat, questions
from trcomp.runtime.agreement import Begun, Row
from trcomp.runtime.distributed import rank, world_size
from trcomp.runtime.graph import Collective
from trcomp.runtime.reductions import own_group
from trcomp.runtime.waiting import waiting

_ALWAYS_COMPARED = frozenset(4**power for power in range(24))
"""The numbers of collectives that are compared though their graph is known: ever rarer ones."""
_PATIENCE_SECONDS = 8
"""How long a graph waits, before it runs, for ranks to tell what they do."""
_GRACE_SECONDS = 0.25
"""Ranks of one mind come within it; who tells nothing for longer is asked."""
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
    comparisons += [Comparison(begun, set(heard(begun.ranks))) for begun in compared.values()]
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
                raise differing(store, ours, peer, theirs)
        if not in_time:
            return


def _place(begun: Begun) -> str:
    return f"trcomp/collectives/{begun.group}/{begun.number}"


def _show(store: Any, begun: Begun) -> None:
    store.key_value_set(f"{_place(begun)}/{rank()}", f"{begun.digest} {begun.line}", True)


_OPERATIONS = "operations"


def answer(question: str) -> None:
    """Answer another rank: what this one has recorded, or what it begins as number so and so."""
    store = global_state.client
    if store is None:
        return
    if question == _OPERATIONS:
        _tell_operations(store)
        return
    group, number, peer = question.split(" ")
    wanted = group, int(number)
    _demands.setdefault(wanted, set()).add(int(peer))  # First: it may be begun meanwhile.
    begun = agreement.ledger.found(*wanted)
    if begun is not None:
        _demands.pop(wanted, None)
        _show(store, begun)


def heard(group: Sequence[int]) -> Sequence[int]:
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


def _tell_operations(store: Any) -> None:
    told = agreement.ledger.kept(), _Latest.operations()
    packed = base64.b64encode(zlib.compress(json.dumps(told).encode())).decode()
    store.key_value_set(f"trcomp/operations/{rank()}", packed, True)


def _asked_operations(store: Any, peer: int) -> tuple[list[Begun], list[Row]]:
    """The collectives of a peer and the operations of its last graph; none if it is gone."""
    questions.ask(store, peer, _OPERATIONS)
    told = _awaited(store, f"trcomp/operations/{peer}", _ANSWER_SECONDS)
    if not told:
        return [], []
    last, rows = json.loads(zlib.decompress(base64.b64decode(told)))
    return [Begun(*begun) for begun in last], [(text, line) for text, line in rows]


def differing(store: Any, ours: Begun, peer: int, theirs: Begun) -> RanksDifferError:
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
