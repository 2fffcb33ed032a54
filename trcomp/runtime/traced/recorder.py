"""Runs a traced graph on placeholders, and tells where in the script what it records comes from."""

from __future__ import annotations

import re
from bisect import bisect_left
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import fx

from trcomp.runtime import scopes
from trcomp.runtime.ir import Node, tick


class Recorder(fx.Interpreter):
    """Runs a part on placeholders and notes which of its nodes records what."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.failed: str | None = None
        """The node that could not be recorded."""
        self._started: list[int] = []
        self._ran: list[fx.Node] = []

    def run_node(self, n: fx.Node) -> Any:
        self._started.append(tick())
        self._ran.append(n)
        try:
            with (
                torch._C._DisableAutocast(),
                scopes.tracing(n) if scopes.Asked.on else nullcontext(),
            ):
                return super().run_node(n)
        except Exception:
            self.failed = n.name
            raise

    def origin(self, node: Node) -> str | None:
        """Where in the script a recorded node was called, as a sentence."""
        place = bisect_left(self._started, node.seq) - 1
        frame = None if place < 0 else _script_frame(self._ran[place].stack_trace or "")
        if frame is None:
            return None
        path, line, function, code = frame
        return (
            f", called at {path}:{line} in {function}: {code}. To go on without it, put "
            "@torch.compiler.disable on that function: it then runs operator by operator."
        )


_FRAME = re.compile(r'File "(.+?)", line (\d+), in (.+)\n\s*(.*)')
_TORCH = str(Path(torch.__file__).parent)


def _script_frame(trace: str) -> tuple[str, ...] | None:
    """The innermost frame of a traceback that is not torch's own."""
    frames = [match.groups() for match in _FRAME.finditer(trace)]
    outside = [frame for frame in frames if not frame[0].startswith(_TORCH)]
    return next(reversed(outside or frames), None)
