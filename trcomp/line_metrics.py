"""The metrics that a job's lines hold, by the patterns of its metric definitions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

LOSS = {"loss": r"(?i)\bloss\b[\"']?\s*[:=]?\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)"}
"""What is looked for where a job names no metrics: what most scripts print."""


_OTHER_RANK = re.compile(r"^\[(?:\S+ )?rank (?!0\])\d+\]")


class LineMetrics:
    """Values found so far, by the metric's name, in the order of their lines."""

    def __init__(self, definitions: Mapping[str, str]) -> None:
        self.values: dict[str, list[float]] = {}
        self.unreadable: tuple[str, ...] = ()
        """Metrics of which nothing is found here, as their patterns are none of Python's."""
        self._patterns = {}
        for name, pattern in definitions.items():
            try:
                self._patterns[name] = re.compile(pattern)
            except re.error:
                # Of a job that others described: SageMaker's patterns are not Python's everywhere.
                self.unreadable += (name,)

    def read(self, lines: Iterable[str]) -> None:
        """Find the values in some more lines."""
        for line in lines:
            for name, pattern in self._patterns.items():
                for match in pattern.finditer(line):
                    value = _number(match[1] if pattern.groups else match[0])
                    if value is not None:
                        self.values.setdefault(name, []).append(value)

    @property
    def latest(self) -> str:
        """The last value of each metric, for a reader."""
        return "  ".join(f"{name} {values[-1]:g}" for name, values in self.values.items())


class JobMetrics(LineMetrics):
    """Those of a job's lines: what it defines, else the losses that its first rank prints."""

    def __init__(self, definitions: Mapping[str, str]) -> None:
        super().__init__(definitions or LOSS)
        self._of_all = bool(definitions)

    def read(self, lines: Iterable[str]) -> None:
        """Find the values in some more lines of the job's log."""
        super().read(line for line in lines if self._of_all or not _OTHER_RANK.match(line))


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
