"""Calls put off to the end of the step: what `add_step_closure` promises to scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_waiting: list[tuple[Callable[..., Any], Sequence[Any]]] = []


def add(closure: Callable[..., Any], args: Sequence[Any] = ()) -> None:
    """Call `closure(*args)` at the next step barrier, when the step's values are on their way.

    A value read in it waits for the device but cuts no graph.
    """
    _waiting.append((closure, tuple(args)))


def run() -> None:
    """Make the calls in the order they were added; the step barrier does this last.

    A closure that raises ends the step with its exception; those after it are dropped.
    """
    calls = _waiting[:]
    _waiting.clear()
    for closure, args in calls:
        closure(*args)
