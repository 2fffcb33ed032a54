"""What stands below a job's lines while it runs: in a terminal, in a notebook, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Protocol

from rich.console import Console
from rich.status import Status
from rich.text import Text

from trcomp.backends.base import JobRecord, JobStatus

_WAITING = f"{JobStatus.PREPARING} …"


class Panel(Protocol):
    """Where it stands."""

    def show(self, text: str | Text | None) -> None:
        """Show a text in place of the one before, None for nothing."""


@contextmanager
def opened(console: Console) -> Iterator[Panel]:
    """The panel below what a console prints; plain output has none."""
    if console.is_jupyter:
        yield _Notebook()
    elif console.is_terminal:
        with console.status(_WAITING) as status:
            yield _Terminal(status)
    else:
        yield _Nowhere()


def job_text(record: JobRecord, metrics: str) -> Text:
    """All there is to know of a running job: state, instances, cost so far, metrics, links."""
    now = datetime.now(UTC)
    state = record.transitions[-1]
    message = f"  {state.message}" if state.message else ""
    whole = _duration((now - record.transitions[0].time).total_seconds())
    for_ = _duration((now - state.time).total_seconds())
    text = Text(f"{record.status} for {for_}, {whole} in all{message}", style="cyan")
    rows = record.details(now)
    rows += [("metrics", metrics)] if metrics else []
    rows += record.links.items()
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        text.append(f"\n{name:<{width}}  ", style="bold").append(value, style="default")
    return text


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class _Terminal:
    def __init__(self, status: Status) -> None:
        self._status = status

    def show(self, text: str | Text | None) -> None:
        if text is None:
            self._status.stop()
        else:
            self._status.update(text)
            self._status.start()


class _Notebook:
    """One output of the cell that changes; rich's own needs a widget package and kernel for it."""

    def __init__(self) -> None:
        self._output: Any = None

    def show(self, text: str | Text | None) -> None:
        # Not a requirement: whoever has a notebook has it.
        from IPython.display import display

        bundle = {"text/plain": str(text or "")}
        if self._output is None:
            self._output = display(bundle, raw=True, display_id=True)
        else:
            self._output.update(bundle, raw=True)


class _Nowhere:
    def show(self, text: str | Text | None) -> None:
        """Show nothing: who reads lines wants lines alone."""
