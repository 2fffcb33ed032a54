"""What figures are held against: means of ratios between two contestants, and a bar."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
TRANSFORMERS = ("vit", "bert", "gpt2")


@dataclass(frozen=True)
class Bar:
    """A figure of one contestant over a figure of another, and what it should be at most."""

    text: str
    mine: str
    theirs: str
    figure: str
    most: float
    transformers: bool | None = None
    """Only models that are transformers, or only those that are none."""

    def ratio(self, rows: Sequence[Row]) -> float | None:
        """The geometric mean over the models that have both figures; None where none has."""
        pairs = [
            (row["peers"].get(self.mine, {}), row["peers"].get(self.theirs, {}))
            for row in rows
            if self.transformers in (None, row["model"] in TRANSFORMERS)
        ]
        ratios = [
            mine[self.figure] / theirs[self.figure]
            for mine, theirs in pairs
            if mine.get(self.figure) and theirs.get(self.figure)
        ]
        return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else None


BARS = (
    Bar("step: trcomp compile / flax", "trcomp-compile", "flax", "step_ms", 1.0),
    Bar("step: trcomp / flax", "trcomp", "flax", "step_ms", 1.05),
    Bar("step: trcomp / torch_xla", "trcomp", "torch_xla", "step_ms", 0.6),
    Bar("step, transformers: trcomp / eager", "trcomp", "eager", "step_ms", 1.05, True),
    Bar("step, convolutions: trcomp / eager", "trcomp", "eager", "step_ms", 1.5, False),
    Bar("host: trcomp / torch_xla", "trcomp", "torch_xla", "host_us", 0.25),
    Bar("host: trcomp compile / torch_xla", "trcomp-compile", "torch_xla", "host_us", 0.12),
    Bar("first step: trcomp / torch_xla", "trcomp", "torch_xla", "first_step_seconds", 1.0),
)
