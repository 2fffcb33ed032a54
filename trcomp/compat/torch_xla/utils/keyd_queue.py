"""Queues between threads that can be closed, one of them by key."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any


class QueueBase:
    """A queue with room for some items, which either end may close.

    Args:
        maxsize: Items it has room for.
    """

    def __init__(self, maxsize: int = 1024) -> None:
        self._maxsize = maxsize
        self._changed = threading.Condition()
        self._close_read = self._close_write = False

    def max_size(self) -> int:
        """Items it has room for."""
        return self._maxsize

    def close(self) -> None:
        """Take no more items and give None to whoever waits."""
        with self._changed:
            self._close_read = self._close_write = True
            self._changed.notify_all()

    def close_write(self) -> None:
        """Give None once the items are gone."""
        with self._changed:
            self._close_write = True
            self._changed.notify_all()

    def _wait_until(self, ready: Callable[[], bool]) -> None:
        self._changed.wait_for(ready)


class Queue(QueueBase):
    """First in, first out."""

    def __init__(self, maxsize: int = 1024) -> None:
        super().__init__(maxsize)
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        """Add an item, when there is room."""
        with self._changed:
            self._wait_until(lambda: len(self._items) < self._maxsize or self._close_read)
            if not self._close_read:
                self._items.append(item)
                self._changed.notify_all()

    def get(self) -> Any:
        """The next item, when there is one; None if the queue is closed and empty."""
        with self._changed:
            self._wait_until(lambda: bool(self._items) or self._close_write)
            item = self._items.popleft() if self._items else None
            self._changed.notify_all()
            return item


class KeydQueue(QueueBase):
    """Items by key."""

    def __init__(self, maxsize: int = 1024) -> None:
        super().__init__(maxsize)
        self._items: dict[Any, Any] = {}
        self._awaited: set[Any] = set()

    def put(self, key: Any, item: Any) -> None:
        """Add an item, when there is room or somebody waits for it."""

        def ready() -> bool:
            room = len(self._items) < self._maxsize
            return room or key in self._awaited or self._close_read

        with self._changed:
            self._wait_until(ready)
            if not self._close_read:
                self._items[key] = item
                self._changed.notify_all()

    def get(self, key: Any) -> Any:
        """The item of a key, when it is there; None if the queue is closed without it."""
        with self._changed:
            self._awaited.add(key)
            self._changed.notify_all()
            self._wait_until(lambda: key in self._items or self._close_write)
            self._awaited.discard(key)
            item = self._items.pop(key, None)
            self._changed.notify_all()
            return item
