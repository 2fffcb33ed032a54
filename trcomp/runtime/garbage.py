"""Python's garbage collector, at the pace of scripts that record their steps.

A recorded step makes thousands of objects where a computed one makes none, and all die by their
reference counts when it runs. At Python's own pace they would be searched for cycles while they
live: a quarter of a step's host time, and every dozen steps a pause for all objects of the process
(ViT-tiny: 23 of 81 ms a step, the longest pause 270 ms; at this pace 2 ms, and 4).
"""

from __future__ import annotations

import gc

_PYTHONS_OWN = (700, 2000)
"""How many new objects start a collection of the young: Python 3.11 and 3.12, 3.13."""
_YOUNG = 10_000
"""About what one step makes: a script's own garbage is found as often as where nothing records."""


def register() -> None:
    """Set the pace, unless the script has set its own."""
    young, *older = gc.get_threshold()
    if young in _PYTHONS_OWN:
        gc.set_threshold(_YOUNG, *older)
