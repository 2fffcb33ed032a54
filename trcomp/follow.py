"""A job on the terminal: its stages with times, the workers' lines, the summary at its end."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from trcomp import panel
from trcomp.backends.base import Cursor, JobRecord, JobStatus, Transition
from trcomp.errors import JobError, JobNotFoundError
from trcomp.job import Job, raise_for_outcome
from trcomp.line_metrics import LineMetrics

_COLOURS = {
    JobStatus.COMPLETED: "green",
    JobStatus.FAILED: "red",
    JobStatus.STOPPED: "yellow",
    JobStatus.STOPPING: "yellow",
}
_WITH_LINES = {
    JobStatus.PREPARING,
    JobStatus.STARTING,
    JobStatus.TRAINING,
    JobStatus.STOPPING,
}
_OWN_LINE = re.compile(r"\[(\S+ )?trcomp\] |(\[\S+\] )?\[pip\] ")
"""The entrypoint's and pip's lines, which come before the first of a worker's."""


_TOLD_FROM = 3
"""Shapes from which a graph that is compiled again is told of: two are a short last batch."""


def run(
    job: Job, submit: Callable[[], None], console: Console, *, show_logs: bool, compiles: bool
) -> JobRecord:
    """Submit a job and show it until it has ended.

    Ctrl-C stops it and all its processes; on a terminal it asks first whether a job that runs
    elsewhere is to go on.

    Args:
        job: The job.
        submit: Starts it.
        console: Where to show it; lines are plain when it is no terminal.
        show_logs: Also show what the workers print.
        compiles: The script is compiled, which takes a while in its first step.

    Raises:
        JobFailedError: The job failed.
        JobStoppedError: The job was stopped.
        KeyboardInterrupt: After Ctrl-C, when the job has been stopped, or is to go on alone.
    """
    view = _View(job, console, show_logs, compiles)
    try:
        with panel.opened(console):
            submit()
        record = _watched(job, view, console)
    except KeyboardInterrupt:
        if not view.left:
            with suppress(JobNotFoundError):
                _stop(job, view, console)
        raise
    _summarise(job, record, console, view.metrics.latest)
    raise_for_outcome(record)
    return record


def _watched(job: Job, view: _View, console: Console) -> JobRecord:
    """The record of a job once it has ended, shown until then."""
    while True:
        try:
            return view.until_end()
        except KeyboardInterrupt:
            if not (job.remote and console.is_terminal and sys.stdin.isatty()):
                raise
        answer = _answer(job, console)
        if answer == "stop":
            raise KeyboardInterrupt
        if answer == "detach":
            view.left = True
            _say(f"{job.handle} goes on; `trcomp logs -f {job.handle}` follows it.", console)
            raise KeyboardInterrupt


def _answer(job: Job, console: Console) -> str:
    """What is to become of a job that is no longer watched; another Ctrl-C stops it."""
    question = f"{job.handle} runs on. [s]top it, [d]etach and let it run, or Enter to watch on? "
    try:
        text = console.input(Text(question)).strip().lower()
    except KeyboardInterrupt:
        return "stop"
    except EOFError:
        return "detach"
    return {"s": "stop", "d": "detach"}.get(text[:1], "watch")


def _summarise(job: Job, record: JobRecord, console: Console, metrics: str) -> None:
    """Print what an ended job did, how fast, what it cost, and where its results are."""
    rows = record.details(datetime.now(UTC)) + _result_rows(record)
    if metrics:
        rows = [("metrics", metrics), *rows]
    if record.status is not JobStatus.FAILED:
        rows = report_rows(job.report()["totals"]) + rows
    width = max(len(name) for name, _ in rows)
    console.print()
    for name, value in rows:
        _say(Text.assemble((f"{name:<{width}}", "bold"), "  ", value), console)


def report_rows(totals: dict[str, Any]) -> list[tuple[str, str]]:
    """The measurements of a job for a reader, without those that its workers did not make."""
    formats = [
        ("workers", "num_ranks", "{:d}"),
        ("steps", "steps", "{:d}"),
        ("compiles", "compiles", "{:d}"),
        ("loaded from disk", "loads", "{:d}"),
        ("steady step time", "steady_step_seconds", "{:.4f} s"),
        ("time to first step", "first_step_seconds", "{:.2f} s"),
        ("samples/s", "samples_per_second", "{:.1f}"),
        ("input wait", "input_wait_seconds", "{:.2f} s"),
    ]
    rows = [(label, form.format(totals[key])) for label, key, form in formats if totals.get(key)]
    measured, workers = totals.get("num_ranks", 0), totals.get("world_size", 0)
    if 0 < measured < workers:
        rows[0] = ("workers", f"{workers}, of which {measured} left measurements")
    fallbacks = totals.get("fallbacks")
    if fallbacks:
        counts = ", ".join(f"{op} ({count})" for op, count in sorted(fallbacks.items()))
        rows.append(("ops on the CPU", counts))
    return rows + [("compiled again", text) for text in _repeated(totals.get("varying", []))]


def unmeasured(job: Job) -> str:
    """Why a job has no measurements."""
    if job.status().ended:
        why = "its workers did not compute through trcomp, or were killed before they wrote them"
        return f"{job.handle} has left no measurements: {why}."
    why = f"workers write them as they end; `trcomp top {job.name}` shows how it gets on"
    return f"{job.handle} has no measurements yet: {why}."


def _repeated(graphs: list[dict[str, Any]]) -> list[str]:
    """Of each graph that was compiled for three shapes or more: which input varies, what helps."""
    told = []
    for graph in graphs:
        if graph["compiles"] < _TOLD_FROM:
            continue
        first = graph["inputs"][0]
        shapes = ["x".join(map(str, shape)) for shape in first["shapes"]]
        told.append(
            f"{graph['compiles']} times a graph of {graph['operations']} operations, recorded by "
            f"{graph['line']}: its input "
            f"{first['input']} ({first['dtype']}) came as {shapes[0]}, {shapes[1]}, ... "
            f"{shapes[-1]}; pad to one length or to a few"
        )
    return told


def stage_text(step: Transition, begin: datetime) -> str:
    """One line for a state that a job entered."""
    elapsed = (step.time - begin).total_seconds()
    detail = f"  {step.message}" if step.message and not step.status.ended else ""
    return f"{elapsed:8.1f} s  {step.status}{detail}"


class _View:
    """What of a job has been shown."""

    def __init__(self, job: Job, console: Console, show_logs: bool, compiles: bool) -> None:
        self.job = job
        self.console = console
        self.show_logs = show_logs
        self.compiles = compiles
        self.shown = 0
        self.silent = True
        """Whether no worker's line has been shown yet."""
        self.cursor: Cursor = {}
        self.left = False
        """Whether the job is to go on without anybody watching."""
        self.metrics = LineMetrics({})

    def until_end(self) -> JobRecord:
        """Show everything new, again and again, until the job has ended."""
        with panel.opened(self.console) as below:
            while True:
                record = self.job.record()
                steps = record.transitions
                if not self.metrics.values:
                    self.metrics = LineMetrics(record.metric_definitions)
                below.show(self._activity(record))
                # What a worker printed follows the news that it runs, and precedes that of its end.
                self._show_stages(steps, _WITH_LINES)
                came = self._show_lines(record.status.ended)
                if came and record.status.ended:
                    continue
                self._show_stages(steps, set(JobStatus))
                if record.status.ended:
                    return record
                # Where lines come there are soon more: nobody is to read them late.
                time.sleep(min(self.job.poll_seconds, 1.0) if came else self.job.poll_seconds)

    def _show_lines(self, final: bool) -> bool:
        if not self.show_logs:
            return False
        lines, self.cursor = self.job.read_logs(self.cursor, final=final)
        self.metrics.read(lines)
        for line in lines:
            # As it is: a worker's line may hold brackets and its own colours.
            self.console.out(line, highlight=False)
            self.silent = self.silent and _OWN_LINE.match(line) is not None
        return bool(lines)

    def _activity(self, record: JobRecord) -> str | Text | None:
        """What goes on: of a job elsewhere all there is to know, of one here what it waits for."""
        state = record.status
        if self.job.remote and not state.ended:
            return panel.job_text(record, self.metrics.latest)
        if state is JobStatus.TRAINING and self.show_logs:
            why = " (the first step compiles)" if self.compiles else ""
            return f"{state}: waiting for the first line{why} …" if self.silent else None
        return None if state.ended else f"{state} …"

    def _show_stages(self, steps: tuple[Transition, ...], which: set[JobStatus]) -> None:
        for step in steps[self.shown :]:
            if step.status not in which:
                return
            style = _COLOURS.get(step.status, "cyan")
            _say(Text(stage_text(step, steps[0].time), style), self.console)
            self.shown += 1


def _stop(job: Job, view: _View, console: Console) -> None:
    job.stop()
    _say(f"Ctrl-C: stopping {job.handle} and all its processes; again kills them.", console)
    try:
        view.until_end()
    except KeyboardInterrupt:
        job.stop()
        with suppress(JobError):
            job.wait()
    _say(f"{job.handle}: {job.status()}. No process of it is left.", console)


def _say(text: str | Text, console: Console) -> None:
    # A handle or path is of use only whole and as it is: nothing is wrapped or coloured.
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def _result_rows(record: JobRecord) -> list[tuple[str, str]]:
    rows = [("model", record.model)] if record.model else []
    if record.output:
        rows.append(("output", record.output))
    if record.report_place:
        rows.append(("report", record.report_place))
    return [*rows, ("job", record.handle)]
