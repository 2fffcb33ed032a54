"""Handlers of closures: at once, or in the background, in order."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class ClosureHandler(ABC):
    """Something that runs closures."""

    @abstractmethod
    def run(self, closure: Callable[[], Any]) -> None:
        """Run one."""

    def run_all(self, closures: Iterable[Callable[[], Any]]) -> None:
        """Run several, in order."""
        for closure in closures:
            self.run(closure)


class AsyncClosureHandler(ClosureHandler):
    """Runs closures in a thread, one after another; after one that raised, none.

    Args:
        max_queue_size: Closures that may wait; `run` waits for room. XLA_MAX_ASYNC_QUEUE goes
            before it.
    """

    def __init__(self, max_queue_size: int = 100) -> None:
        room = int(os.environ.get("XLA_MAX_ASYNC_QUEUE", max_queue_size))
        self._room = threading.BoundedSemaphore(room)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="step-closures")
        self._running: deque[Future[Any]] = deque()
        self._failed = False

    def run(self, closure: Callable[[], Any]) -> None:
        """Run a closure in the background.

        Raises:
            RuntimeError: An earlier one raised, which is the cause.
        """
        self.check()
        self._room.acquire()
        self._running.append(self._pool.submit(self._call, closure))

    def check(self) -> None:
        """Say it if one raised.

        Raises:
            RuntimeError: The closure's exception is its cause.
        """
        while self._running and self._running[0].done():
            error = self._running.popleft().exception()
            if error is not None:
                self._running.clear()
                self._failed = False
                raise RuntimeError("A step closure in the background raised.") from error

    def _call(self, closure: Callable[[], Any]) -> None:
        try:
            if not self._failed:
                closure()
        except BaseException:
            self._failed = True
            raise
        finally:
            self._room.release()
