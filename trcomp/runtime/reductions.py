"""The reductions that scripts may ask for, and over which ranks."""

from __future__ import annotations

from collections.abc import Sequence

from trcomp.errors import UnsupportedError

NAMES = ("sum", "mul", "min", "max", "and", "or", "xor")

Partition = tuple[tuple[int, ...], ...] | None
"""Every rank in exactly one group, groups in the order of their first ranks; None: all in one."""


def check(reduce_type: str) -> None:
    """Refuse a reduction that does not exist.

    Raises:
        UnsupportedError: The reduction has no such name.
    """
    if reduce_type not in NAMES:
        raise UnsupportedError(
            f"got the reduction {reduce_type!r}; allowed: {', '.join(NAMES)}.",
            "Averages are a sum with scale=1/world_size.",
        )


def partition(groups: Sequence[Sequence[int]] | None, world_size: int) -> Partition:
    """The groups that a script names, each of which reduces on its own.

    Raises:
        UnsupportedError: A rank is in no group or in several.
    """
    if not groups:
        return None
    if sorted(rank for group in groups for rank in group) != list(range(world_size)):
        raise UnsupportedError(
            f"got groups={[list(group) for group in groups]}; each of the {world_size} ranks must "
            "be in exactly one group.",
            "Give a rank that is to stay alone a group of its own, or leave groups out.",
        )
    found = tuple(sorted((tuple(group) for group in groups if group), key=lambda group: group[0]))
    return None if found == (tuple(range(world_size)),) else found


def around(group: Sequence[int], world_size: int) -> Partition:
    """A partition that has `group` in it.

    The other ranks make groups of the same size where they can: XLA gathers over such. They take no
    part, so their own graphs need not hold what this one does.
    """
    rest = [rank for rank in range(world_size) if rank not in set(group)]
    size = len(group) if len(rest) % len(group) == 0 else 1
    others = [tuple(rest[i : i + size]) for i in range(0, len(rest), size)]
    return partition([tuple(group), *others], world_size)


def own_group(groups: Partition, rank: int) -> tuple[int, ...]:
    """The group that a rank is in.

    Raises:
        ValueError: The partition is None: what "all" is, it does not say.
    """
    for group in groups or ():
        if rank in group:
            return group
    raise ValueError(f"no group of {groups} has rank {rank}")
