"""`import torch_xla.debug.profiler as xp`: traces for TensorBoard, by JAX's profiler."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any

import torch

import trcomp.runtime as rt
from trcomp import flags
from trcomp.errors import UnsupportedError

from .._missing import missing

__getattr__ = missing(__name__)


class _Session:
    """What runs in this process: a server, a trace of torch's profiler (without XLA)."""

    port: int | None = None
    marks_steps = False
    server: Any = None
    plain: Any = None


def start_server(port: int, only_on_master: bool = True) -> Any:
    """Let TensorBoard or `trace` ask this process for traces.

    Args:
        port: Where it listens.
        only_on_master: Whether rank 0 alone has a server.
    """
    if only_on_master and rt.rank() != 0:
        return None
    _Session.port = port
    if flags.ENABLED.get() and _Session.server is None:
        import jax

        _Session.server = jax.profiler.start_server(port)
    return _Session.server or _Session


def start_trace(log_dir: str | os.PathLike[str]) -> None:
    """Record what host and device do, until `stop_trace`, into a folder for TensorBoard.

    Raises:
        RuntimeError: A trace is being recorded.
    """
    if flags.ENABLED.get():
        import jax

        jax.profiler.start_trace(os.fspath(log_dir))
        return
    if _Session.plain is not None:
        raise RuntimeError("A trace is being recorded; only one may be at a time.")
    write = torch.profiler.tensorboard_trace_handler(os.fspath(log_dir))
    _Session.plain = torch.profiler.profile(on_trace_ready=write)
    _Session.plain.start()


def stop_trace() -> None:
    """End the trace and write it.

    Raises:
        RuntimeError: None is being recorded.
    """
    if flags.ENABLED.get():
        import jax

        jax.profiler.stop_trace()
        return
    if _Session.plain is None:
        raise RuntimeError("No trace is being recorded.")
    _Session.plain.stop()
    _Session.plain = None


def trace(
    service_addr: str,
    logdir: str,
    duration_ms: int = 1000,
    num_tracing_attempts: int = 3,
    host_tracer_level: int = 2,
    device_tracer_level: int = 1,
    delay_ms: int = 0,
    timeout_s: int = 120,
    interval_s: int = 5,
) -> None:
    """Record for a while, in the process whose server has this address: this one.

    Args:
        service_addr: host:port of this process's own server.
        logdir: Folder for TensorBoard.
        duration_ms: How long.
        num_tracing_attempts: As for the levels, the timeout and the interval: accepted.
        host_tracer_level: Accepted.
        device_tracer_level: Accepted.
        delay_ms: How long to wait before.
        timeout_s: Accepted.
        interval_s: Accepted.

    Raises:
        UnsupportedError: The server is another process's.
    """
    port = service_addr.rpartition(":")[2]
    if port != str(_Session.port):
        raise UnsupportedError(
            f"got service_addr={service_addr!r}; a trace can be asked of this process's own server "
            f"alone ({_Session.port}).",
            "Call start_trace(folder) and stop_trace() in the script, or use TensorBoard.",
        )
    time.sleep(delay_ms / 1000)
    start_trace(logdir)
    time.sleep(duration_ms / 1000)
    stop_trace()


def trace_detached(*args: Any, **kwargs: Any) -> None:
    """`trace` in the background."""
    threading.Thread(target=trace, args=args, kwargs=kwargs, daemon=True).start()


class Trace:
    """`with Trace("name"):` names what the host does in the block, in a trace.

    Args:
        name: What the trace shows.
        kwargs: Further facts that it shows.
    """

    _is_step = False

    def __init__(self, name: str, **kwargs: Any) -> None:
        self.name = name
        self._facts = kwargs
        self._marks = ExitStack()

    def __enter__(self) -> Trace:
        self._marks.enter_context(_annotation(self.name, self._facts, self._is_step))
        if flags.ENABLED.get():
            from trcomp.runtime import scopes

            self._marks.enter_context(scopes.within(self.name))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._marks.__exit__(kind, value, traceback)


class StepTrace(Trace):
    """`with StepTrace("train", step_num=step):` names a step, and ends it: `torch_xla.sync()`."""

    _is_step = True

    def __enter__(self) -> StepTrace:
        set_tracer_marked_step(True)
        super().__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if value is None:
            rt.sync()
        super().__exit__(kind, value, traceback)


def set_tracer_marked_step(value: bool) -> None:
    """Note whether the script marks its steps in traces."""
    _Session.marks_steps = value


def get_tracer_marked_step() -> bool:
    """Whether the script marks its steps in traces: it has used `StepTrace`."""
    return _Session.marks_steps


def trace_me(scope: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Name a function's calls in a trace."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with Trace(scope):
                return function(*args, **kwargs)

        return call

    return mark


def _annotation(name: str, facts: dict[str, Any], is_step: bool) -> AbstractContextManager[Any]:
    if not flags.ENABLED.get():
        return torch.profiler.record_function(name)
    import jax

    kind = jax.profiler.StepTraceAnnotation if is_step else jax.profiler.TraceAnnotation
    return kind(name, **facts)
