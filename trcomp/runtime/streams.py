"""Streams and events of a device that has one stream: what is recorded runs in that order.

Waiting for a stream or an event on the device is nothing to do, because the order waits for itself.
On the host it means that what is recorded so far is started, and that the device has finished it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from trcomp.runtime.device import DEVICE, NAME, check_index
from trcomp.runtime.sync import finish, is_idle

_BaseStream: Any = torch._C.Stream
_BaseEvent: Any = torch._C.Event


class Stream(_BaseStream):  # type: ignore[misc]
    """The device's stream; each one that is made is the same.

    Args:
        device: The device; accepted for the form.
        priority: Accepted for the form: there is nothing to come before.
    """

    def __new__(cls, device: Any = DEVICE, priority: int = 0, **ids: Any) -> Any:
        _check(device)
        return super().__new__(cls, device=DEVICE)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def query(self) -> bool:
        """Whether all that was recorded has run. What is pending is started, so polling ends."""
        return is_idle()

    def synchronize(self) -> None:
        """Compute all that is pending and wait for it; the step goes on."""
        finish()

    def wait_event(self, event: Any) -> None:
        """Nothing: what is recorded later runs later."""

    def wait_stream(self, stream: Any) -> None:
        """Nothing: there is no other stream."""

    def record_event(self, event: Any = None) -> Any:
        """Mark this place, in a new event if none is given."""
        event = Event() if event is None else event
        event.record(self)
        return event


class Event(_BaseEvent):  # type: ignore[misc]
    """A place in what is recorded.

    Args:
        device: The device; accepted for the form.
        enable_timing: Whether `elapsed_time` may be asked. `record` then computes what is pending
            and waits for it, since only that has a time: it cuts the step.
        blocking: Accepted for the form.
        interprocess: Accepted for the form.
    """

    def __new__(
        cls,
        device: Any = DEVICE,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
    ) -> Any:
        _check(device)
        return super().__new__(cls, device=DEVICE, enable_timing=enable_timing)

    def __init__(self, device: Any = DEVICE, enable_timing: bool = False, **kwargs: Any) -> None:
        self._is_timed = enable_timing
        self._is_recorded = False
        self._seconds: float | None = None

    def record(self, stream: Any = None) -> None:
        """Mark this place."""
        self._is_recorded = True
        if self._is_timed:
            finish()
            self._seconds = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Nothing: what is recorded later runs later."""

    def query(self) -> bool:
        """Whether all that was recorded before has run, which is started if it was not."""
        return not self._is_recorded or self._seconds is not None or is_idle()

    def synchronize(self) -> None:
        """Wait until all that was recorded before has run."""
        if self._is_recorded and self._seconds is None:
            finish()

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to another.

        Raises:
            ValueError: One of them was made without `enable_timing=True`, or was not recorded.
        """
        if not (self._is_timed and end_event._is_timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._seconds is None or end_event._seconds is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return float(1000 * (end_event._seconds - self._seconds))


def _check(device: Any) -> None:
    if device is not None:
        check_index(torch.device(NAME, device) if isinstance(device, int) else torch.device(device))


CURRENT: Any = Stream()
"""The device's one stream."""


def current_stream(device: Any = None) -> Any:
    """The device's stream."""
    _check(device)
    return CURRENT


def set_stream(stream: Any) -> None:
    """Accept the device's stream, or None."""


@contextmanager
def stream(stream: Any) -> Iterator[Any]:
    """`with torch.xla.stream(s):`, which changes nothing: there is one stream."""
    yield stream


def _is_ours(device: Any) -> bool:
    """Whether what torch is asked for is of this device: named, or the default."""
    if device is None or isinstance(device, int):
        accelerator = torch.accelerator.current_accelerator()
        return accelerator is not None and accelerator.type == NAME
    return torch.device(device).type == NAME


class _Stands(type(_BaseStream)):  # type: ignore[misc]
    """A class in the place of its base: it makes the base's instances, or the device's."""

    ours: Any

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        by_number = "device_type" in kwargs or "stream_id" in kwargs
        if not by_number and _is_ours(args[0] if args else kwargs.get("device")):
            return cls.ours(*args, **kwargs)
        return cls.__base__(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.__base__)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.__base__)


class AnyStream(_BaseStream, metaclass=_Stands):  # type: ignore[misc]
    """`torch.Stream`, of every device."""

    ours = Stream


class AnyEvent(_BaseEvent, metaclass=_Stands):  # type: ignore[misc]
    """`torch.Event`, of every device."""

    ours = Event


def register() -> None:
    """Let `torch.Stream` and `torch.Event` make the device's."""
    setattr(torch, "Stream", AnyStream)  # noqa: B010
    setattr(torch, "Event", AnyEvent)  # noqa: B010
