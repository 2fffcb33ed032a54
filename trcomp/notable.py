"""Which of a job's ranks a reader is shown where all are too many: those that stand out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

COUNT = 16
"""More lines than these cannot be told apart in a chart."""
WORDS = "the first, those furthest behind or slowest, and the fastest"


def notable(
    ranks: Sequence[T],
    steps: Callable[[T], int],
    step_seconds: Callable[[T], float | None],
    always: Callable[[T], bool] = lambda rank: False,
) -> list[T]:
    """At most `COUNT` of some ranks, in their order.

    Args:
        ranks: In order of rank.
        steps: How many one has made.
        step_seconds: How long it takes for one, if that is known.
        always: Whether one is wanted, whatever it did.
    """
    if len(ranks) <= COUNT:
        return list(ranks)
    # Those behind come first, then those that take longer.
    order = sorted(
        range(len(ranks)), key=lambda i: (steps(ranks[i]), -(step_seconds(ranks[i]) or 0.0))
    )
    wanted = [0, *(index for index, rank in enumerate(ranks) if always(rank))]
    chosen = list(dict.fromkeys([*wanted, *order[-(COUNT // 4) :], *order]))[:COUNT]
    return [ranks[index] for index in sorted(chosen)]
