"""`torch_xla.compile`: a region that is one graph, or may be few, and says when it is more.

A function is captured as a whole where it can be, as by `trcomp.step`; else it is recorded.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from trcomp import flags
from trcomp.errors import DeviceError, UnsupportedError

from .core import xla_model
from .experimental.eager import eager_mode_context

_OPTIONS = UnsupportedError(
    "compile options of one region are not offered.",
    "Set XLA_FLAGS before the process starts: they hold for all graphs.",
)


def compile(
    f: Callable[..., Any] | None = None,
    full_graph: bool | None = False,
    name: str | None = None,
    max_different_graphs: int | None = None,
    custom_compile_options: dict[str, Any] | None = None,
) -> Any:
    """Run a function as a region of its own: what was pending is computed before, all of it after.

    Also a decorator with arguments, and a context: `with torch_xla.compile():`.

    Args:
        f: A function or module; the wrapped one is returned.
        full_graph: Whether an execution inside the region, such as for a value that is read, is an
            error.
        name: What messages call the region.
        max_different_graphs: How many graphs the function may be, in all its calls however often it
            was wrapped; None is any.
        custom_compile_options: None, or empty.

    Raises:
        DeviceError: Later, in the region: it was executed inside, or is one graph too many. The
            message says what differs from the graph before.
        UnsupportedError: There are compile options.
    """
    if custom_compile_options:
        raise _OPTIONS
    region = _Region(name, bool(full_graph), max_different_graphs)
    return region if f is None else region(f)


def step() -> Any:
    """A region without a name: `compile()`."""
    return compile()


def set_custom_compile_options(options: dict[str, Any]) -> None:
    """Refused, unless there are none."""
    if options:
        raise _OPTIONS


_graphs_of: WeakKeyDictionary[Callable[..., Any], dict[Hashable, str]] = WeakKeyDictionary()
"""The graphs that each function has been: key to text."""


class _Region:
    """A context and a decorator: looks at each graph that is executed in it."""

    def __init__(
        self, name: str | None, full_graph: bool, max_different_graphs: int | None
    ) -> None:
        self._name = name
        self._full_graph = full_graph
        self._max = max_different_graphs
        self._graphs: dict[Hashable, str] = {}
        self._is_inside = False
        self._entered: list[contextlib.ExitStack] = []

    def __call__(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """The function as this region."""
        if self._name is None:
            self._name = getattr(f, "__name__", type(f).__name__)
        self._graphs = _graphs_of.setdefault(f, self._graphs)
        run = self._captured(f)

        def call(*args: Any, **kwargs: Any) -> Any:
            with self:
                return run(*args, **kwargs)

        return functools.update_wrapper(call, f, updated=())

    def _captured(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """The function, replayed as a whole where it can be (`trcomp.step`)."""
        if not flags.ENABLED.get():
            return f
        from trcomp.runtime.capture.steps import StepFunction

        return StepFunction(f, max_captures=self._max or 8, tells=self._full_graph)

    def __enter__(self) -> None:
        xla_model.end_step()
        entered = contextlib.ExitStack()
        entered.enter_context(eager_mode_context(False))
        entered.enter_context(self._observing())
        self._entered.append(entered)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._entered.pop():
            self._is_inside = False
            xla_model.end_step()

    @contextlib.contextmanager
    def _observing(self) -> Iterator[None]:
        if not flags.ENABLED.get():
            yield
            return
        from trcomp.runtime.sync import observers

        self._is_inside = True
        observers.append(self._see)
        try:
            yield
        finally:
            self._is_inside = False
            observers.remove(self._see)

    def _see(self, graph: Any) -> None:
        if self._full_graph and self._is_inside:
            raise DeviceError(
                f"{self._title()} was compiled with full_graph=True, and something in it made the "
                "device execute before its end: a value was read, or an operator ran on the CPU.",
                "The traceback shows where. Return the tensor and read it outside, or leave "
                "full_graph out.",
            )
        if self._max is None:
            return
        from trcomp.runtime.bodies import opened

        key = opened(graph)
        if key in self._graphs:
            return
        text = str(graph)
        if len(self._graphs) == self._max:
            before = next(reversed(self._graphs.values())) if self._graphs else ""
            raise DeviceError(
                f"{self._title()} became graph number {self._max + 1}, and max_different_graphs is "
                f"{self._max}. {_difference(before, text)}",
                "Pad inputs to a fixed shape, or allow more graphs.",
            )
        self._graphs[key] = text

    def _title(self) -> str:
        return self._name or "A region"


def _difference(before: str, now: str) -> str:
    """The first line in which two graphs differ."""
    old, new = before.splitlines(), now.splitlines()
    for was, is_now in zip(old, new, strict=False):
        if was != is_now:
            return f"The first that differs: {was!r} before, {is_now!r} now."
    if len(old) == len(new):
        return "They differ in where operands come from."
    return f"It was {len(old)} lines and is {len(new)}."
