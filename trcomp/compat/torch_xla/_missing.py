"""The error for a torch_xla name that the tree does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def missing(module: str) -> Callable[[str], Any]:
    """A module's `__getattr__`, which says whose tree this is."""

    def refuse(name: str) -> Any:
        raise AttributeError(
            f"module {module!r} has no {name!r}: trcomp's torch_xla module tree does not offer it"
        )

    return refuse
