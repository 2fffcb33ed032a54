"""What the ranks of a job on this machine measured lately: the ends of their metrics.jsonl."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pydantic_core import from_json

from trcomp.backends.base import Stretch
from trcomp.backends.record import LocalRecord
from trcomp.backends.results import REPORTS
from trcomp.contract import Paths

_TAIL_BYTES = 1 << 15
"""What is read of a rank; a line has some four hundred."""
_FEWEST_TAIL_BYTES = 1 << 11
_BYTES_AT_ONCE = 1 << 25
"""Of all ranks together: thousands of them are looked at every second."""


def latest(record: LocalRecord) -> list[Stretch]:
    """The last stretches of each rank, oldest first."""
    paths = [(host, path) for host in record.hosts for path in _files(record, host)]
    share = _BYTES_AT_ONCE // max(1, len(paths))
    most = max(_FEWEST_TAIL_BYTES, min(_TAIL_BYTES, share))
    found = [one for host, path in paths for one in _stretches(host, path, most)]
    return sorted(found, key=lambda one: (one.time, one.rank))


def _files(record: LocalRecord, host: str) -> Iterator[Path]:
    folder = Paths(record.directory / "hosts" / host / "ml").output_data / REPORTS
    return folder.glob("metrics*.jsonl")


def _stretches(host: str, path: Path, most: int) -> list[Stretch]:
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - most))
            lines = stream.read().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        # The first is cut, the last may be half written, and the script itself can write there.
        with suppress(ValueError, TypeError):
            found.append(Stretch.model_validate({**from_json(line), "host": host}))
    return found
