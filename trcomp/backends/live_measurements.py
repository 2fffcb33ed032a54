"""What the ranks of a job on this machine measured lately: the ends of their metrics.jsonl."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from trcomp.backends.base import Stretch
from trcomp.backends.record import LocalRecord
from trcomp.backends.results import REPORTS
from trcomp.contract import Paths

_TAIL_BYTES = 1 << 15
"""A line has some four hundred."""


def latest(record: LocalRecord) -> list[Stretch]:
    """The last stretches of each rank, oldest first."""
    found = []
    for host in record.hosts:
        folder = Paths(record.directory / "hosts" / host / "ml").output_data / REPORTS
        for path in folder.glob("metrics*.jsonl"):
            found += [one.model_copy(update={"host": host}) for one in _stretches(path)]
    return sorted(found, key=lambda one: (one.time, one.rank))


def _stretches(path: Path) -> list[Stretch]:
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - _TAIL_BYTES))
            lines = stream.read().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        # The first is cut, the last may be half written, and the script itself can write there.
        with suppress(ValidationError):
            found.append(Stretch.model_validate_json(line))
    return found
