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
_PER_STRIDE = pow(_STRIDE, -1, 1 << 64)
_FAR = 1 << 32
_STATE = struct.Struct("<QQ")


class Draws:
    """Keys that were drawn: the very objects, and where in the stream each lay."""

    def __init__(self) -> None:
        self.keys: list[int] = []
        self._start = _Stream.word
        self._words: list[int] = []

    def note(self, key: int, word: int) -> None:
        """A key is drawn at a place of the stream."""
        self.keys.append(key)
        self._words.append(word)

    def places(self) -> tuple[int, ...]:
        """How many draws after the first each lay; then how far the stream moved on in all.

        Raises:
            ValueError: The stream was set meanwhile, to a place that has nothing to do with it.
        """
        words = (*self._words, _Stream.word)
        found = tuple((word - self._start) * _PER_STRIDE & _MASK for word in words)
        if max(found) >= _FAR:
            raise ValueError("the seed was set")
        return found


class _Stream:
    seed = torch.initial_seed() & _MASK
    word = seed
    watched: Draws | None = None


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
    word = _Stream.word
    key = _signed(_mix(word))
    _Stream.word = (word + _STRIDE) & _MASK
    if _Stream.watched is not None:
        _Stream.watched.note(key, word)
    return key


def take_keys(places: tuple[int, ...]) -> list[int]:
    """The keys at these places of the stream, which then moves on by the last of them."""
    *drawn, moved = places
    start = _Stream.word
    _Stream.word = (start + moved * _STRIDE) & _MASK
    return [_signed(_mix((start + place * _STRIDE) & _MASK)) for place in drawn]


@contextmanager
def watched() -> Iterator[Draws]:
    """Collects what is drawn meanwhile."""
    before, draws = _Stream.watched, Draws()
    _Stream.watched = draws
    try:
        yield draws
    finally:
        _Stream.watched = before


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
