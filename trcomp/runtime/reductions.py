"""The reductions that scripts may ask for, and over which ranks."""

from __future__ import annotations

from collections.abc import Sequence

from trcomp.errors import UnsupportedError

NAMES = ("sum", "mul", "min", "max", "and", "or")


def check(reduce_type: str, groups: Sequence[Sequence[int]] | None, world_size: int) -> None:
    """Refuse a reduction that does not exist, and groups that are not one group of all ranks.

    Raises:
        UnsupportedError: The reduction has no such name, there are several groups, or ranks miss.
    """
    if reduce_type not in NAMES:
        raise UnsupportedError(
            f"got the reduction {reduce_type!r}; allowed: {', '.join(NAMES)}.",
            "Averages are a sum with scale=1/world_size.",
        )
    if groups and sorted(map(sorted, groups)) != [list(range(world_size))]:
        raise UnsupportedError(
            f"got groups={groups!r}; collectives run over all {world_size} ranks.",
            "Leave groups out.",
        )
