"""Step closures that run in the background, one at a time, in the order they were added."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from trcomp.runtime import closures

_pool = ThreadPoolExecutor(1, thread_name_prefix="step-closures")  # its thread starts at first use
_running: list[Future[Any]] = []


def in_background(closure: Callable[..., Any]) -> Callable[..., None]:
    """A closure that hands `closure` to the background; the step after says how it went."""

    def start(*args: Any) -> None:
        _running.append(_pool.submit(closure, *args))
        closures.add(_raise_failures)

    return start


def _raise_failures() -> None:
    done = [future for future in _running if future.done()]
    _running[:] = [future for future in _running if not future.done()]
    if _running:
        closures.add(_raise_failures)
    for future in done:
        future.result()
