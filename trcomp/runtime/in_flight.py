"""What the device has been given and may still compute."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jax

    from trcomp.runtime.executable import Executable

started: deque[tuple[jax.Array, Executable]] = deque()
"""Executables that were started, oldest first, each with what is ready when it is done."""


def has_finished() -> bool:
    """Whether the device has finished all that was started."""
    return all(finished.is_ready() for finished, _ in list(started))  # type: ignore[attr-defined]
