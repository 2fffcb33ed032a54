"""Which ranks of many a reader sees."""

from __future__ import annotations

from trcomp.notable import COUNT, notable

Rank = tuple[int, int, float | None]
"""Number, steps, seconds of each."""


def shown(ranks: list[Rank], always: int | None = None) -> list[int]:
    found = notable(ranks, lambda one: one[1], lambda one: one[2], lambda one: one[0] == always)
    return [number for number, _, _ in found]


def test_few_are_all_shown() -> None:
    assert shown([]) == []
    assert shown([(n, 5, None) for n in range(COUNT)]) == list(range(COUNT))


def test_of_many_those_that_stand_out_are_shown_in_their_order() -> None:
    ranks: list[Rank] = [(n, 100, 0.1 + n * 1e-6) for n in range(8000)]
    ranks[4321] = (4321, 90, 0.1)
    ranks[77] = (77, 100, 9.0)
    ranks[5000] = (5000, 100, 0.05)
    numbers = shown(ranks, always=6000)
    assert len(numbers) == COUNT and numbers == sorted(numbers)
    assert {0, 4321, 77, 5000, 6000} <= set(numbers)
