"""The compiled graphs of this process: the least recently used go when there are too many.

A script whose every step is another graph would fill the memory with executables. On a CPU it would
end sooner: each executable maps its code in a dozen pieces, Linux gives a process 65530 mappings,
and the compiler crashes on the first it does not get.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from pathlib import Path

from trcomp.runtime.executable import Executable

_MAX_EXECUTABLES = 2048
_MAX_MAPPED_SHARE = 0.5
"""Of the mappings that a process may have; the rest is for whatever else it maps."""
_COUNTED_EVERY = 32
"""Compiles between two looks at the mappings. A large graph has hundreds."""

_executables: OrderedDict[Hashable, Executable] = OrderedDict()
_added = 0


def find(key: Hashable) -> Executable | None:
    """The executable of a graph with this key, if there is one."""
    executable = _executables.get(key)
    if executable is not None:
        _executables.move_to_end(key)
    return executable


def keep(key: Hashable, executable: Executable) -> None:
    """Remember an executable, and forget old ones if it is one too many."""
    global _added
    _executables[key] = executable
    _added += 1
    if len(_executables) > _MAX_EXECUTABLES:
        _executables.popitem(last=False)
    if _added % _COUNTED_EVERY == 0:
        while len(_executables) > 1 and _mapped_share() > _MAX_MAPPED_SHARE:
            for _ in range(-(-len(_executables) // 4)):
                _executables.popitem(last=False)


def count() -> int:
    """How many executables are remembered."""
    return len(_executables)


def _mapped_share() -> float:
    """How much of the mappings that this process may have it has; 0 where nothing tells."""
    try:
        allowed = int(Path("/proc/sys/vm/max_map_count").read_text(encoding="ascii"))
        with Path("/proc/self/maps").open("rb") as maps:
            return sum(1 for _ in maps) / allowed
    except (OSError, ValueError):
        return 0.0
