"""What ranks have begun to do with each other, and where two of them differ.

Each group of ranks numbers its collectives, however ranks cut them into graphs: number 7 must be
the same for all of the group. A rank keeps the last of them, and tells others as a short record.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest
from typing import Any, NamedTuple

_KEPT = 1024
"""Collectives of each group that are remembered."""
_TOLD = 16
"""The last of them that a rank tells the others while it waits: each of thousands does."""
_SHOWN_CHARS = 160

Row = tuple[str, str]
"""An operation as text, and where in the script it was recorded (`train.py:31`)."""


_RUN = 5
"""So many ranks at equal distances are told by the first and the last."""


Group = tuple[int, ...] | range
"""Ranks of a group; all of the job's as a range, which costs the same however many they are."""


@lru_cache(maxsize=256)
def group_name(ranks: Group) -> str:
    """A group as text that is short for thousands of ranks too: "0,1", "0-7999", "3-7995/8"."""
    parts, rest = [], list(ranks)
    while rest:
        step, count = (rest[1] - rest[0] if len(rest) > 1 else 1), 1
        while count < len(rest) and step > 0 and rest[count] - rest[count - 1] == step:
            count += 1
        if count < _RUN:
            parts.append(str(rest.pop(0)))
            continue
        parts.append(f"{rest[0]}-{rest[count - 1]}" + (f"/{step}" if step > 1 else ""))
        del rest[:count]
    return ",".join(parts)


@lru_cache(maxsize=256)
def ranks_of(name: str) -> tuple[int, ...]:
    """The ranks that `group_name` was given."""
    ranks: list[int] = []
    for part in name.split(","):
        ends, _, step = part.partition("/")
        first, _, last = ends.partition("-")
        ranks += range(int(first), int(last or first) + 1, int(step or 1))
    return tuple(ranks)


class Begun(NamedTuple):
    """A collective that a rank has begun.

    Attributes:
        group: The ranks, as text: "0,1", or "0-7" where they are many.
        number: Among the group's, from 1.
        digest: Of this and all of the group's before it.
        line: Of the script.
        text: What is done; other ranks are told it when they ask.
    """

    group: str
    number: int
    digest: str
    line: str
    text: str = ""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Of the group."""
        return ranks_of(self.group)


@dataclass
class Record:
    """What one rank tells the others.

    Attributes:
        counts: How many collectives of each group it has begun.
        last: The last few of them, each group's in order.
        place: Of a meeting of all ranks that it has come to, with all of its collectives done.
        ended: Whether its script is done, and its collectives are.
        line: Of the script, where it is.
    """

    counts: dict[str, int] = field(default_factory=dict)
    last: list[Begun] = field(default_factory=list)
    place: str = ""
    ended: bool = False
    line: str = ""

    def to_json(self) -> str:
        """As text for another rank: of the last collectives their numbers and digests alone."""
        last: dict[str, list[str]] = {}
        for begun in self.last:
            last.setdefault(begun.group, [str(begun.number)]).append(begun.digest)
        told = {group: " ".join(words) for group, words in last.items()}
        return json.dumps(vars(self) | {"last": told}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Record:
        """What another rank has told."""
        found = json.loads(text)
        last = []
        for group, told in found["last"].items():
            first, *digests = told.split(" ")
            last += [Begun(group, n, digest, "") for n, digest in enumerate(digests, int(first))]
        return cls(**found | {"last": last})


class Ledger:
    """The collectives that this rank has begun."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._last: dict[str, deque[Begun]] = {}

    def begin(self, group: Group, text: str, line: str) -> Begun:
        """Enter a collective."""
        name = group_name(group)
        last = self._last.setdefault(name, deque(maxlen=_KEPT))
        before = last[-1].digest if last else ""
        digest = hashlib.sha256(f"{before} {text}".encode()).hexdigest()[:12]
        begun = Begun(name, self.counts.get(name, 0) + 1, digest, line, text)
        self.counts[name] = begun.number
        last.append(begun)
        return begun

    def found(self, group: str, number: int) -> Begun | None:
        """A collective by its number, if it is remembered."""
        kept = tuple(self._last.get(group, ()))  # In one go: another thread may begin the next.
        at = number - kept[0].number if kept else -1
        return kept[at] if 0 <= at < len(kept) else None

    def kept(self) -> list[Begun]:
        """All that are remembered."""
        return [begun for group in tuple(self._last.values()) for begun in tuple(group)]

    def record(self, *, place: str = "", ended: bool = False, line: str = "") -> Record:
        """What to tell others."""
        last = [begun for group in tuple(self._last.values()) for begun in tuple(group)[-_TOLD:]]
        return Record(dict(self.counts), last, place, ended, line)


ledger = Ledger()
"""This process's."""


def difference(ours: Iterable[Begun], theirs: Iterable[Begun]) -> tuple[Begun, Begun] | None:
    """The first collective that two ranks mean differently, as each has it; None if none."""
    others = {(begun.group, begun.number): begun for begun in theirs}
    for begun in ours:
        other = others.get((begun.group, begun.number))
        if other is not None and other.digest != begun.digest:
            return begun, other
    return None


def awaited_in_vain(ours: Record, peer: int, theirs: Record) -> Begun | None:
    """This rank's first collective that a peer can never begin.

    Args:
        ours: Of a rank that waits for its device.
        peer: A rank that has ended, or is at a meeting that this rank has not come to.
        theirs: Its record.
    """
    for begun in ours.last:
        if peer in begun.ranks and begun.number > theirs.counts.get(begun.group, 0):
            return begun
    return None


def first_difference(ours: Iterable[Row], theirs: Iterable[Row]) -> tuple[int, Row, Row] | None:
    """Where two ranks' operations begin to differ: the position from 1, and each rank's operation.

    An operation that one has and the other has not is none to the other: ("nothing more", "").
    """
    missing: Row = ("nothing more", "")
    pairs: Iterator[tuple[Any, Any]] = zip_longest(ours, theirs, fillvalue=missing)
    for position, (own, other) in enumerate(pairs, start=1):
        if own[0] != other[0]:
            return position, own, other
    return None


def shown(row: Row) -> str:
    """An operation and its line for a reader."""
    text, line = row
    if len(text) > _SHOWN_CHARS:
        text = f"{text[: _SHOWN_CHARS - 44]} … {text[-40:]}"
    return f"{text} at {line}" if line else text
