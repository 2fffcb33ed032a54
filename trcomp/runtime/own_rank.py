"""Which rank this process is: what its variables say, kept once the ranks have met.

A framework may take the variables away when it is done (Lightning does); who asks later still gets
an answer.
"""

from __future__ import annotations

import os

from trcomp.env import variables
from trcomp.env.variables import Identity


class _Kept:
    identity: Identity | None = None


def is_given() -> bool:
    """Whether someone gave this process a rank."""
    return _Kept.identity is not None or variables.has_identity(os.environ)


def identity() -> Identity:
    """This process's rank.

    Raises:
        ContractError: The variables are not whole numbers or contradict each other.
    """
    return _Kept.identity or variables.identity(os.environ)


def keep() -> None:
    """The ranks have met: this process's will not change."""
    _Kept.identity = identity()
