"""Which steps of a script are traced: `profile_steps=(10, 15)`, "10-15" as it travels."""

from __future__ import annotations

import re
from typing import NamedTuple, Self

from trcomp.errors import Problem, SpecError

NEEDED = (
    "two whole numbers, the first and the last step, are needed; 2 at least, as the first step "
    "compiles: (10, 15), or 10-15 on the command line."
)
_TEXT = re.compile(r"(\d{1,9})-(\d{1,9})")


class ProfileSteps(NamedTuple):
    """The first and the last step of a trace, counted from 1."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    @classmethod
    def checked(cls, value: object, field: str) -> Self | None:
        """Two numbers, or a text of them, as steps; None and an empty text stay None.

        Raises:
            SpecError: They are not, or not in order, or begin before step 2.
        """
        match = _TEXT.fullmatch(value) if isinstance(value, str) else None
        pair = [int(text) for text in match.groups()] if match else value
        if pair in (None, ""):
            return None
        if (
            isinstance(pair, list | tuple)
            and len(pair) == 2
            and all(type(number) is int for number in pair)
            and 2 <= pair[0] <= pair[1]
        ):
            return cls(*pair)
        raise SpecError([Problem(field, value, NEEDED)])
