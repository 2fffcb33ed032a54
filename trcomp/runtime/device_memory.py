"""How much memory the device has, and how much of it is taken, by XLA's own account.

XLA's CPU client keeps no account. There the arrays that live are added up, which is what they take
between steps; the highest of it is the highest that was ever asked for.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import jax

from trcomp.runtime import client


class Account(NamedTuple):
    """The device's memory now, in bytes.

    Attributes:
        taken: Held by arrays and by what runs.
        peak: The highest of `taken`, since the start or the last `reset_peak`.
        reserved: What the client has of the device, used or not.
        limit: What it may have.
    """

    taken: int
    peak: int
    reserved: int
    limit: int


class _Peak:
    seen = 0
    """The highest that was seen since the last reset."""
    at_reset = 0
    """The client's own peak then: it has no reset."""


def account() -> Account:
    """The device's memory now."""
    stats = client.device().memory_stats() or {}
    if not stats:
        taken = _bytes_of_arrays()
        _Peak.seen = max(_Peak.seen, taken)
        return Account(taken, _Peak.seen, taken, _host_bytes("SC_PHYS_PAGES"))
    taken = stats["bytes_in_use"]
    _Peak.seen = max(_Peak.seen, taken)
    peak = stats.get("peak_bytes_in_use", 0)
    peak = peak if peak > _Peak.at_reset else _Peak.seen
    limit = stats.get("bytes_limit", 0)
    return Account(taken, peak, max(taken, stats.get("pool_bytes", 0)), limit)


def _bytes_of_arrays() -> int:
    """What arrays take; one that spans the ranks and its part on this rank are one."""
    parts = [array.addressable_data(0) for array in jax.live_arrays() if not array.is_deleted()]
    return sum({part.unsafe_buffer_pointer(): part.nbytes for part in parts}.values())


def reset_peak() -> None:
    """Start `Account.peak` again from what is taken now."""
    stats = client.device().memory_stats() or {}
    _Peak.at_reset = stats.get("peak_bytes_in_use", 0)
    _Peak.seen = 0
    account()


def free_and_total() -> tuple[int, int]:
    """Bytes that are free, and bytes that there are; on the CPU device, the host's."""
    now = account()
    if client.platform() == "cpu":
        return _host_bytes("SC_AVPHYS_PAGES"), now.limit
    return now.limit - now.taken, now.limit


def _host_bytes(pages: str) -> int:
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
