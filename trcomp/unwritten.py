"""Files that training can do without: one that cannot be written is told of once."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

_told: set[str] = set()


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Go on where a file cannot be written, a full disk above all; stderr says so the first time.

    Args:
        what: What is lost by that, the subject of the sentence.
    """
    try:
        yield
    except OSError as error:
        if what not in _told:
            _told.add(what)
            message = f"[trcomp] {what} cannot be written: {error}. Training goes on."
            print(message, file=sys.stderr, flush=True)
