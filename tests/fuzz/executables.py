"""Files of a cache of executables: a damaged one is a miss, whatever is in it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from functools import lru_cache
from pathlib import Path
from unittest import mock

from tests.fuzz.draws import Draw, place
from trcomp import flags
from trcomp.env.executables import STARTS


@lru_cache(maxsize=1)
def _good() -> tuple[str, bytes]:
    """The directory's name and a file of an executable, as this process would write it."""
    import jax

    from trcomp.runtime import jax_pickles, persistent

    payload = jax_pickles.dumps(jax.jit(lambda x: x + 1).lower(1.0).compile())
    return persistent._environment(), hashlib.sha256(payload).digest() + payload


def executables(draw: Draw, directory: Path) -> None:
    """A file of the cache, its pickle with a digest that fits, and the notes of the last start."""
    from trcomp.runtime import head_start, jax_pickles, persistent

    environment, good = _good()
    path = directory / environment / "graph"
    path.parent.mkdir(exist_ok=True)
    damaged = draw.damaged_bytes(good)
    place(path, damaged)
    found = persistent._read(path)
    assert (found is not None) == (damaged == good)
    assert path.exists() == (damaged == good)
    # XLA's own code inside is not looked at: who can write it may run code anyway.
    with contextlib.suppress(Exception):
        jax_pickles._Pickle(
            io.BytesIO(draw.damaged_bytes(good[hashlib.sha256().digest_size :]))
        ).load()
    notes = directory / STARTS / "script"
    notes.parent.mkdir(exist_ok=True)
    names = f"{head_start._settings()}\n{environment}/graph\n../../x\n/etc/passwd".encode()
    place(notes, draw.damaged_bytes(names))
    with (
        mock.patch.object(head_start, "_note_in", lambda root: notes),
        mock.patch.object(head_start, "ThreadPoolExecutor"),
        mock.patch.object(os, "register_at_fork"),
        mock.patch.dict(os.environ, {flags.CACHE.name: str(directory)}),
    ):
        head_start.begin(directory, persistent._read)
    for read in head_start._Start.reading:
        assert read.parent.parent == directory
