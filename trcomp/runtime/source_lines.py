"""Which line of the script recorded an operation.

Finding it costs a tenth of recording the operation, so it is done while graphs are new: in a run's
first steps, and again after each graph that was compiled. Otherwise an operation has the line at
which one of its kind was recorded first.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

from trcomp.runtime.capture.code import script_frame

if TYPE_CHECKING:
    from types import FrameType

    from trcomp.runtime.ir import Node

_CALM_RUNS = 8
"""Executables that run again, one after the other, from which lines are no longer looked up."""


class LineWatch:
    """Whether operations' lines are looked up now."""

    on = True
    _calm_runs = 0

    @classmethod
    def note_run(cls, *, is_new: bool) -> None:
        """An executable runs.

        Args:
            is_new: Whether for the first time.
        """
        cls._calm_runs = 0 if is_new else cls._calm_runs + 1
        cls.on = cls._calm_runs < _CALM_RUNS


_lines: dict[int, str] = {}
"""By the number of the node."""


def note(node: Node) -> None:
    """A node has just been recorded."""
    _lines[node.seq] = here()


def of(node: Node) -> str:
    """The line that recorded a node, as `file:line`; empty if no script did."""
    return _lines.get(node.seq) or node.signature.line


def is_exact(node: Node) -> bool:
    """Whether `of` is this node's own line rather than that of the first of its kind."""
    return node.seq in _lines


def forget() -> None:
    """All that was recorded so far has been computed."""
    _lines.clear()


def here() -> str:
    """The line of the script that is running, as `file:line`; empty where none is."""
    frame = script_frame(sys._getframe(1))
    return "" if frame is None else shown(frame)


def shown(frame: FrameType) -> str:
    """A frame's place as `file:line`, the file as the script's directory has it."""
    return f"{_name(frame.f_code.co_filename)}:{frame.f_lineno}"


@cache
def _name(filename: str) -> str:
    main = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    return filename.removeprefix(f"{main.rpartition('/')[0]}/" if "/" in main else "")
