"""The device's random stream: one word, kept on the host; each draw takes a key from it.

The word starts at the seed and moves on by a constant (SplitMix64), so at any place it is itself
the seed of all that follows: a framework can save the place as one integer. A key is a number that
enters the graph as a lifted scalar, so neither a new seed nor a later place compiles anything. The
graph expands it with a counter-based generator (Philox), so forward and backward of one draw share
what was drawn because they share the node.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_MASK = (1 << 64) - 1
_STRIDE = 0x9E3779B97F4A7C15
_STATE = struct.Struct("<QQ")


class _Stream:
    seed = torch.initial_seed() & _MASK
    word = seed
    watched: list[int] | None = None


def manual_seed(seed: int) -> None:
    """Start the stream of `seed`."""
    _Stream.seed = _Stream.word = int(seed) & _MASK


def initial_seed() -> int:
    """The seed that the stream started from, in [0, 2**64)."""
    return _Stream.seed


def _mix(word: int) -> int:
    """SplitMix64's finalizer: a bijection on 64 bits that takes near inputs far apart."""
    word = (word + _STRIDE) & _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def rest_seed() -> int:
    """The seed of what is still to be drawn, as a signed 64-bit number; draws nothing."""
    return _signed(_Stream.word)


def next_key() -> int:
    """The next draw's key, as a signed 64-bit number."""
    key = _signed(_mix(_Stream.word))
    _Stream.word = (_Stream.word + _STRIDE) & _MASK
    if _Stream.watched is not None:
        _Stream.watched.append(key)
    return key


@contextmanager
def watched() -> Iterator[list[int]]:
    """Collects the keys that are drawn meanwhile, the very objects."""
    keys: list[int] = []
    _Stream.watched = keys
    try:
        yield keys
    finally:
        _Stream.watched = None


def get_state() -> torch.Tensor:
    """The stream's state, uint8 of shape (16,)."""
    return torch.frombuffer(
        bytearray(_STATE.pack(_Stream.seed, _Stream.word)), dtype=torch.uint8
    ).clone()


def set_state(state: torch.Tensor) -> None:
    """Go back to a state that `get_state` returned.

    Raises:
        ValueError: `state` is not 16 bytes.
    """
    data = bytes(state.to(device="cpu", dtype=torch.uint8).flatten().tolist())
    if len(data) != _STATE.size:
        raise ValueError(f"got a random state of {len(data)} bytes; it has {_STATE.size}")
    _Stream.seed, _Stream.word = _STATE.unpack(data)
