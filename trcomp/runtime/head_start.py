"""A head start: executables that a script's last run used first, read while it imports and builds.

    <cache>/starts/<digest of the script>    settings, then names of files beside it, one a line

XLA reads an executable in a thread of its own, a second for ViT's; a worker that knows beforehand
which it will need has it by the time its first step is recorded. Only the one process of a job
with one rank does so, and only where the last run had the same settings: the device is then open
before the script comes to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import jax

from trcomp import flags
from trcomp.env.executables import STARTS
from trcomp.runtime import client, own_rank

_MOST = 4
"""Executables of one start: those of the first steps."""
_PATIENCE_SECONDS = 10
_SETTINGS = ("XLA_", "JAX_", "CUDA_", "NVIDIA_")
"""Variables that may decide how the device is opened begin so."""


class _Start:
    """What this process has noted, and what it reads ahead."""

    process = os.getpid()
    names: tuple[str, ...] = ()
    reading: dict[Path, Future[Any]] = {}  # noqa: RUF012


def begin(root: Path, read: Callable[[Path], Any]) -> None:
    """Open the device and read what the last run noted, in a thread.

    The note is gone afterwards: a run that does not come to these executables leaves none.

    Args:
        root: The directory of executables.
        read: Reads one of its files; None if it cannot be.
    """
    place = _note_in(root)
    if place is None:
        return
    try:
        settings, *names = place.read_text(encoding="utf-8").splitlines()
        place.unlink()
    except (OSError, ValueError):
        return
    paths = [root / name for name in names[:_MOST] if _is_two_below(name)]
    if settings != _settings() or not paths:
        return
    thread = ThreadPoolExecutor(1, thread_name_prefix="trcomp-head-start")
    opening = thread.submit(client.start)
    _Start.reading = {path: thread.submit(read, path) for path in paths}
    thread.shutdown(wait=False)
    # A fork while the device is being opened would copy locks that nobody gives back.
    os.register_at_fork(before=lambda: wait([opening], _PATIENCE_SECONDS))


def taken(path: Path) -> Any | None:
    """What was read of a file ahead of time, once; waits for it if it is being read."""
    reading = _Start.reading.pop(path, None)
    with contextlib.suppress(Exception):
        return None if reading is None else reading.result()
    return None


def note(root: Path, path: Path) -> None:
    """Note for the next run of this script that this one used an executable."""
    place = _note_in(root)
    name = str(path.relative_to(root))
    if place is None or len(_Start.names) >= _MOST or name in _Start.names:
        return
    _Start.names += (name,)
    with contextlib.suppress(OSError):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = place.with_suffix(f".{os.getpid()}.part")
        part.write_text("\n".join((_settings(), *_Start.names)), encoding="utf-8")
        part.replace(place)


def _note_in(root: Path) -> Path | None:
    """The file of this script's notes; None for a process that takes no head start."""
    is_child = os.getpid() != _Start.process or multiprocessing.parent_process() is not None
    if is_child or not flags.WORKER.get() or not own_rank.is_given():
        return None
    if own_rank.identity().world_size > 1:
        return None
    try:
        script = Path(sys.argv[0]).read_bytes()
    except OSError:
        return None
    return root / STARTS / hashlib.sha256(script).hexdigest()[:32]


def _is_two_below(name: str) -> bool:
    """Whether a noted name leads to where executables are, and not elsewhere."""
    path = Path(name)
    inside = not path.is_absolute() and ".." not in path.parts and "\0" not in name
    return inside and len(path.parts) == 2


def _settings() -> str:
    """A digest of what opening the device depends on: a script may set some of it itself."""
    found = sorted((k, v) for k, v in os.environ.items() if k.startswith(_SETTINGS))
    config = sorted((name, str(value)) for name, value in jax.config.values.items())
    return hashlib.sha256(repr((found, config)).encode()).hexdigest()
