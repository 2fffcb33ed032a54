"""The file in which a rank says how far it has come, and the one for its stacks.

PROGRESS_DIR/rank-N.progress   written by the rank when it has come further
PROGRESS_DIR/rank-N.stacks     written by it when it gets STACKS_SIGNAL, whatever it is stuck in
PROGRESS_DIR/failed            made by the supervisor before it ends the ranks that have not failed
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

from trcomp import json_fields

STACKS_SIGNAL = signal.SIGUSR1
_FAILED = "failed"


@dataclass(frozen=True)
class Progress:
    """How far a rank has come.

    Attributes:
        rank: The rank.
        pid: Its process.
        steps: Step barriers so far.
        since: When it last did something, by `time.monotonic`: one clock for all of a host.
        collectives: What it has begun to do with other ranks: who has begun less is waited for.
        collective: The last of it, empty if nothing yet.
        ended: Its script is done; it waits for the other ranks.
    """

    rank: int
    pid: int
    steps: int
    since: float
    collectives: int = 0
    collective: str = ""
    ended: bool = False


def write(directory: Path, progress: Progress) -> None:
    """Replace a rank's file in one step; on a disk that has become full, write over what is there.

    Who could no longer say that he goes on would be taken for one that hangs.
    """
    path = directory / f"rank-{progress.rank}.progress"
    draft = directory / f".rank-{progress.rank}.{progress.pid}"
    text = json.dumps(asdict(progress))
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        with contextlib.suppress(OSError), path.open("r+", encoding="utf-8") as file:
            file.write(text.ljust(path.stat().st_size))


def read(directory: Path) -> list[Progress]:
    """What the ranks of a host wrote, in order of rank."""
    found = []
    for path in directory.glob("rank-*.progress"):
        with contextlib.suppress(OSError, ValueError):
            found.append(json_fields.read(Progress, path.read_bytes()))
    # It is the script's own process that writes: none may point signals at others.
    return sorted((one for one in found if one.pid > 1), key=lambda progress: progress.rank)


def note_failure(directory: Path) -> None:
    """Let the ranks of a host know that one has failed, before they are told to end."""
    with contextlib.suppress(OSError):
        (directory / _FAILED).touch()


def has_failed(directory: Path) -> bool:
    """Whether a rank of this host has failed."""
    return (directory / _FAILED).exists()


def stacks_file(directory: Path, rank: int) -> Path:
    """Where a rank's stacks go."""
    return directory / f"rank-{rank}.stacks"
