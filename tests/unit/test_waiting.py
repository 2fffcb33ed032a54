"""When a rank looks into what it waits for."""

from __future__ import annotations

import time
from typing import Any

import pytest

from trcomp.runtime import waiting
from trcomp.runtime.waiting import Wait


class Clock:
    """Stands for the watcher's thread: each tick a second passes, in which steps may end."""

    def __init__(self, wait_seconds: float, count: int) -> None:
        self.now = 0.0
        self._wait_seconds = wait_seconds
        self._left = count
        self._begin()

    def _begin(self) -> None:
        waiting._State.current = Wait("", self.now)
        self._ends = self.now + self._wait_seconds
        self._left -= 1

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        if self.now >= self._ends:
            self._begin()
        return self._left < 0


def looks(monkeypatch: pytest.MonkeyPatch, wait_seconds: float, count: int) -> list[float]:
    """How long each wait of a row had lasted when it was looked into."""
    clock = Clock(wait_seconds, count)
    monkeypatch.setattr(waiting._State, "current", waiting._State.current)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    found: list[float] = []
    stop: Any = clock
    waiting._watch(lambda wait: found.append(clock.now - wait.since), stop)
    return found


def test_a_wait_that_does_not_end_is_looked_into_after_seconds_and_ever_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert looks(monkeypatch, 600, 1) == [4, 8, 16, 32, 64, 128, 192, 256, 320, 384, 448, 512, 576]


def test_steps_that_always_last_so_long_are_soon_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert looks(monkeypatch, 3, 100) == []
    assert looks(monkeypatch, 10, 100) == [4, 8, 8]


def test_a_wait_is_never_left_alone_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    found = looks(monkeypatch, 60, 20)
    assert found.count(16) >= 18
