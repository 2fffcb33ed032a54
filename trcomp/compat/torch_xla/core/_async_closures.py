"""Step closures that run in the background, one at a time, in the order they were added."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from trcomp.runtime import closures

from ..utils.closures import AsyncClosureHandler


def in_background(closure: Callable[..., Any]) -> Callable[..., None]:
    """A closure that hands `closure` to the background; the end of the next step checks on it."""

    def start(*args: Any) -> None:
        handler().run(lambda: closure(*args))
        closures.add(handler().check)

    return start


@cache
def handler() -> AsyncClosureHandler:
    """This process's background."""
    return AsyncClosureHandler()
