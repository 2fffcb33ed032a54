"""torch's gloo backend: what a process that used it does before it ends."""

from __future__ import annotations

import time


def let_finish() -> None:
    """Give gloo's threads a moment without the GIL, in which they drop what they hold.

    One that lets go of its last tensors while the interpreter ends aborts the process ("terminate
    called without an active exception"): a rank that trained well would fail.
    """
    time.sleep(0.05)
