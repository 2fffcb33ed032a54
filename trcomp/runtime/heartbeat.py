"""Tells the supervisor that this rank goes on, and shows its stacks when it does not."""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from pathlib import Path

from trcomp import flags, progress
from trcomp.progress import Progress
from trcomp.runtime import own_rank, timeline
from trcomp.runtime.metrics import counters

_TICK_SECONDS = 0.5


def install() -> None:
    """Report this process's progress from its first step on, if somebody wants to know."""
    place = flags.PROGRESS_DIR.get()
    if place:
        threading.Thread(
            target=_beat, args=[Path(place)], name="trcomp-heartbeat", daemon=True
        ).start()


class _Last:
    """What the rank did with others, and whether its script is done."""

    collectives = 0
    collective = ""
    began = 0.0
    """When the last of them began, by `time.monotonic`."""
    ended = False


def note_collective(text: str) -> None:
    """The rank is about to do this with other ranks."""
    _Last.collectives += 1
    _Last.collective = text
    _Last.began = time.monotonic()


def note_end() -> None:
    """The script is done; what comes is waiting for the other ranks."""
    _Last.ended = True


def _beat(place: Path) -> None:
    """Write a line whenever something has happened; before the first step nothing is promised."""
    before: object = None
    looked = 0.0
    while True:
        time.sleep(_TICK_SECONDS)
        # Ranks that hang do so in a collective, or short of it, within milliseconds of each other:
        # which of thousands stopped first is not told by when their threads look.
        now = time.monotonic()
        since = _Last.began if _Last.began > looked else now
        looked = now
        timeline.note_memory()
        state = (counters.steps, counters.executions, _Last.collectives, _Last.ended)
        if not counters.steps or state == before:
            continue
        rank = own_rank.identity().rank
        if before is None:
            _show_stacks_when_asked(place, rank)
        before = state
        progress.write(
            place,
            Progress(
                rank=rank,
                pid=os.getpid(),
                steps=counters.steps,
                since=since,
                collectives=_Last.collectives,
                collective=_Last.collective,
                ended=_Last.ended,
            ),
        )


def _show_stacks_when_asked(place: Path, rank: int) -> None:
    # The handler is C's: it works while the interpreter is stuck in a collective, too. Its file
    # must stay open.
    file = progress.stacks_file(place, rank).open("w")
    faulthandler.register(progress.STACKS_SIGNAL, file, all_threads=True)
