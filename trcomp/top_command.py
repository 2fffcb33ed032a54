"""`trcomp top`: a running job on one screen, from what its ranks measure and what it prints.

record, live measurements, log lines ──View.look──> Screen ──text──> a terminal, or plain lines
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from trcomp.backends.base import Cursor, JobRecord, Stretch
from trcomp.charts import seconds, size
from trcomp.job import Job
from trcomp.job_argument import job_argument
from trcomp.json_output import json_option, print_json
from trcomp.line_metrics import JobMetrics
from trcomp.notable import WORDS, notable

_REFRESH_SECONDS = 1.0
_RECENT_SECONDS = 15.0
"""Rates are of so much of the past."""
_SPARKS = "▁▂▃▄▅▆▇█"
_WIDEST_SPARK = 40
_LARGEST = 1e30
"""A loss beyond it has no course to show."""


@dataclass(frozen=True)
class RankNow:
    """What one rank is doing.

    Attributes:
        rank: The rank.
        host: Where it runs.
        step: Steps so far.
        step_seconds: A step's time lately; None until two have been made.
        input_wait_share: Of its time lately, what went into waiting for the loader.
        graphs: Graphs compiled or loaded, lately.
        memory_bytes: Of its process.
        silent_seconds: Since it last measured anything.
    """

    rank: int
    host: str
    step: int
    step_seconds: float | None
    samples_per_second: float | None
    input_wait_share: float | None
    graphs: int
    memory_bytes: int
    silent_seconds: float

    @classmethod
    def of(cls, stretches: Sequence[Stretch], now: float) -> RankNow:
        """What the last stretches of a rank, oldest first, come to."""
        last = stretches[-1]
        recent = [one for one in stretches if one.time > last.time - _RECENT_SECONDS]
        timed = [one for one in recent if one.step_seconds is not None]
        lasted = sum((one.step_seconds or 0.0) * one.steps for one in timed)
        steps = sum(one.steps for one in timed)
        waited = sum(one.input_wait_seconds for one in timed)
        rates = [one.samples_per_second for one in timed if one.samples_per_second]
        return cls(
            rank=last.rank,
            host=last.host,
            step=last.step,
            step_seconds=lasted / steps if steps else None,
            samples_per_second=sum(rates) / len(rates) if rates else None,
            input_wait_share=min(waited / lasted, 1.0) if lasted else None,
            graphs=sum(one.compiles + one.loads for one in recent),
            memory_bytes=last.memory_bytes,
            silent_seconds=max(now - last.time, 0.0),
        )


@dataclass(frozen=True)
class Screen:
    """What is shown at one moment."""

    record: JobRecord
    ranks: Sequence[RankNow]
    remaining_seconds: float | None
    metrics: Mapping[str, Sequence[float]]
    last_line: str
    remote: bool

    def text(self) -> str:
        """The screen as lines."""
        blocks = [self._head(), self._rates(), self._metric_lines(), self._table(), self.last_line]
        return "\n\n".join(block for block in blocks if block)

    def values(self) -> dict[str, Any]:
        """The screen as JSON values."""
        return {
            "handle": self.record.handle,
            "status": str(self.record.status),
            "ranks": [vars(rank) for rank in self.ranks],
            "remaining_seconds": self.remaining_seconds,
            "metrics": {name: values[-1] for name, values in self.metrics.items()},
            "last_line": self.last_line,
        }

    def _head(self) -> str:
        record, now = self.record, datetime.now(UTC)
        begin, state = record.transitions[0].time, record.transitions[-1]
        lasted = ((state.time if record.status.ended else now) - begin).total_seconds()
        lines = [f"{record.handle}  {record.status}, {seconds(lasted)} since its start"]
        lines += [f"{name}  {value}" for name, value in record.details(now)]
        if record.failure is not None:
            lines.append(record.failure.message)
        return "\n".join(lines)

    def _rates(self) -> str:
        if not self.ranks:
            return self._why_no_ranks()
        # Ranks make their steps together: the slowest sets the pace.
        pace = max((rank.step_seconds or 0.0) for rank in self.ranks)
        samples = sum(rank.samples_per_second or 0.0 for rank in self.ranks)
        parts = [f"step {min(rank.step for rank in self.ranks):,}"]
        if pace:
            parts.append(f"{1 / pace:.3g} steps/s")
        if samples:
            parts.append(
                f"{samples:,.3g} samples/s" if samples < 1e3 else f"{samples:,.0f} samples/s"
            )
        if self.remaining_seconds is not None and not self.record.status.ended:
            parts.append(f"about {seconds(self.remaining_seconds)} left")
        return "   ".join(parts)

    def _why_no_ranks(self) -> str:
        ended = self.record.status.ended
        if self.remote:
            when = "are with its results" if ended else "come with its results, once it has ended"
            # In two lines, so that a terminal of 80 columns shows all of it.
            typed = f"`trcomp report {self.record.typed}`"
            return f"Its ranks' steps, waits and memory {when}:\n{typed}"
        return "" if ended else "No step has ended yet."

    def _metric_lines(self) -> str:
        width = max(map(len, self.metrics), default=0)
        return "\n".join(
            f"{name:<{width}}  {values[-1]:g}  {sparkline(values)}"
            for name, values in self.metrics.items()
        )

    def _table(self) -> str:
        if not self.ranks:
            return ""
        rows = [("rank", "host", "step", "step time", "input wait", "new graphs", "memory", "")]
        shown = notable(self.ranks, lambda rank: rank.step, lambda rank: rank.step_seconds)
        for rank in shown:
            silent = f"silent for {seconds(rank.silent_seconds)}"
            is_silent = not self.record.status.ended and rank.silent_seconds > _RECENT_SECONDS
            rows.append(
                (
                    str(rank.rank),
                    rank.host,
                    f"{rank.step:,}",
                    "-" if rank.step_seconds is None else seconds(rank.step_seconds),
                    "-" if rank.input_wait_share is None else f"{rank.input_wait_share:.0%}",
                    str(rank.graphs),
                    size(rank.memory_bytes),
                    silent * is_silent,
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)) for row in rows]
        if more := len(self.ranks) - len(shown):
            lines.append(f"and {more:,} more ranks: these are {WORDS}")
        return "\n".join(line.rstrip() for line in lines)


class View:
    """Looks at one job again and again."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._cursor: Cursor = {}
        self._metrics: JobMetrics | None = None
        self._last_line = ""

    def look(self) -> Screen:
        """The job now."""
        record = self._job.record()
        self._read_lines(record)
        assert self._metrics is not None
        by_rank: dict[int, list[Stretch]] = {}
        for stretch in self._job.live():
            by_rank.setdefault(stretch.rank, []).append(stretch)
        now = time.time()
        ranks = [RankNow.of(by_rank[rank], now) for rank in sorted(by_rank)]
        totals = [s.total_steps for found in by_rank.values() for s in found if s.total_steps]
        return Screen(
            record=record,
            ranks=ranks,
            remaining_seconds=_remaining(ranks, max(totals, default=0)),
            metrics=self._metrics.values,
            last_line=self._last_line,
            remote=self._job.remote,
        )

    def _read_lines(self, record: JobRecord) -> None:
        if self._metrics is None:
            self._metrics = JobMetrics(record.metric_definitions)
        while True:
            # Of a job that has ended, what arrives late too.
            lines, self._cursor = self._job.read_logs(self._cursor, final=record.status.ended)
            if not lines:
                return
            self._metrics.read(lines)
            self._last_line = next((x for x in reversed(lines) if x.strip()), self._last_line)


@click.command(name="top")
@job_argument
@click.option("--once", is_flag=True, help="Print it once and return; so it is without a terminal.")
@json_option
def top(job: str, once: bool, as_json: bool) -> None:
    """Show how JOB gets on, until it has ended: steps, losses, waits, memory, the last line.

    Of a job in SageMaker what its lines and its state say.
    """
    handle = Job.attach(job)
    view = View(handle)
    if as_json:
        print_json(view.look().values())
        return
    console = Console()
    if once or not console.is_terminal:
        click.echo(view.look().text())
        return
    screen = view.look()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            # As it is: a worker's line may hold brackets.
            live.update(Text(screen.text(), no_wrap=True, overflow="ellipsis"), refresh=True)
            if screen.record.status.ended:
                return
            time.sleep(max(handle.poll_seconds, _REFRESH_SECONDS))
            screen = view.look()


def sparkline(values: Sequence[float], width: int = _WIDEST_SPARK) -> str:
    """The course of some numbers in a line of text; each place is the mean of its share of them."""
    finite = [value for value in values if abs(value) < _LARGEST]
    if len(finite) < 2:
        return ""
    count = min(width, len(finite))
    cuts = [round(i * len(finite) / count) for i in range(count + 1)]
    means = [math.fsum(finite[a:b]) / (b - a) for a, b in itertools.pairwise(cuts)]
    low, high = min(means), max(means)
    if not high > low:
        return _SPARKS[0] * count
    top = len(_SPARKS) - 1
    return "".join(_SPARKS[round((mean - low) / (high - low) * top)] for mean in means)


def _remaining(ranks: Sequence[RankNow], total: int) -> float | None:
    """Seconds until a number of steps are made; None if either is not known."""
    pace = max((rank.step_seconds or 0.0 for rank in ranks), default=0.0)
    if not total or not pace:
        return None
    return max(total - min(rank.step for rank in ranks), 0) * pace
