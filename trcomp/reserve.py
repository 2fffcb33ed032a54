"""Room kept in a directory, so that a job that fills the disk can still say so."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What the kernel says of a disk, or of a user's share of it, that is full."""
_NAME = ".reserve"
_BYTES = 1 << 18


def keep(directory: Path) -> None:
    """Keep room for the last words of a job.

    Raises:
        OSError: There is none, even now.
    """
    (directory / _NAME).write_bytes(bytes(_BYTES))


def give_back(directory: Path) -> None:
    """Give that room to what is to be written now, as far as it can be given."""
    with contextlib.suppress(OSError):
        (directory / _NAME).unlink(missing_ok=True)
