"""Turns what is pending into device buffers: graph, key, executable, run. Asynchronous."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import jax

from trcomp.runtime import (
    aside,
    client,
    closures,
    comparing,
    executables,
    in_flight,
    ir,
    source_lines,
)
from trcomp.runtime.agreement import Row
from trcomp.runtime.bodies import operations
from trcomp.runtime.compiler import FAILED_NODE, arguments, compile_graph
from trcomp.runtime.executable import Executable
from trcomp.runtime.exhaustion import explained
from trcomp.runtime.graph import Graph, build
from trcomp.runtime.ir import Buffer, Signature, Value
from trcomp.runtime.metrics import counters
from trcomp.runtime.peers import blaming_peers
from trcomp.runtime.samples import note
from trcomp.runtime.source_lines import LineWatch

_lock = threading.RLock()
_MAX_IN_FLIGHT = 2
"""Steps the host may be ahead of the device: one to overlap, not so many that memory fills up."""
observers: list[Callable[[Graph], None]] = []
"""Called with each graph before it runs. One that raises refuses it; its values stay pending."""


def sync(wait: bool = False) -> None:
    """A step barrier: everything pending is compiled if need be and started; buffers are donated.

    Args:
        wait: Whether to return only when the device has finished.
    """
    evaluate(donate=True)
    counters.mark_step()
    note("syncs", 1)
    if wait:
        _wait(leave=0)
    closures.run()
    counters.end_script()


def finish() -> None:
    """Compute all that is pending and wait for the device, without ending a step."""
    evaluate()
    _wait(leave=0)


def is_idle() -> bool:
    """Whether the device has finished all that was recorded. What is pending is started first."""
    evaluate()
    return in_flight.has_finished()


def evaluate(*, donate: bool = False) -> None:
    """Compute every live pending value; without `donate` it is an early sync."""
    with _lock:
        start = time.perf_counter()
        waited = counters.compile_seconds + counters.run_seconds
        aside.note_sync()
        values = ir.take_pending()
        if not values:
            return
        _compute(values, donate)
        source_lines.forget()
        counters.early_syncs += not donate
        waited = counters.compile_seconds + counters.run_seconds - waited
        counters.sync_seconds += time.perf_counter() - start - waited


def compute_alone(values: list[Value]) -> None:
    """Compute some pending values; the step that they belong to stays whole."""
    with _lock:
        if values:
            _compute(values, donate=False)


def _compute(values: list[Value], donate: bool) -> None:
    """Compute some pending values; after a failure the others are still pending.

    What an operator that cannot be lowered would have made is left out of later syncs, so that they
    do not fail with it; whoever reads it is told again.
    """
    graph = build(values, donate=donate)
    try:
        _run(graph)
    except BaseException as error:
        failed = getattr(error, FAILED_NODE, None)
        ir.restore_pending(values if failed is None else graph.values_without(failed))
        raise


def _run(graph: Graph) -> None:
    for observe in observers:
        observe(graph)
    executable = executables.find(graph.key)
    told = []
    if graph.collective:
        client.start()
        told = comparing.tell(
            graph.collectives(),
            is_new=executable is None,
            operations=partial(_operations, *_recorded(graph, executable)),
        )
    LineWatch.note_run(is_new=executable is None)
    if executable is None:
        executable = compile_graph(graph)
        executables.keep(graph.key, executable)
        counters.new_graph_steps.append(counters.steps)
        note("donated_buffers", len(executable.donated))
    else:
        counters.cache_hits += 1
    comparing.await_alike(told)
    start = time.perf_counter()
    with blaming_peers(), explained(executable):
        results = executable.run(*arguments(graph, executable.donated, executable.kept))
    note("execute_seconds", time.perf_counter() - start)
    note("graph_nodes", len(graph.nodes))
    counters.executions += 1
    counters.donated_buffers += len(executable.donated)
    *arrays, finished = results
    if not executable.made:
        executable.made.extend((array.shape, array.dtype) for array in arrays)
    for value, array, aval in zip(graph.values, arrays, executable.made, strict=True):
        local, spanning = (None, array) if graph.collective else (array, None)
        value.settle(Buffer(local, value, spanning, aval))
    in_flight.started.append((finished, executable))
    _wait(leave=_MAX_IN_FLIGHT)


def _recorded(
    graph: Graph, executable: Executable | None
) -> tuple[tuple[Signature, ...], tuple[str, ...]]:
    """What a graph does, without what it holds: it is kept when the graph is gone."""
    if executable is None:
        signatures = tuple(node.signature for node in graph.nodes)
    else:
        signatures = executable.signatures
    return signatures, tuple(map(source_lines.of, graph.nodes)) if LineWatch.on else ()


def _operations(signatures: tuple[Signature, ...], lines: tuple[str, ...]) -> list[Row]:
    places = lines or [signature.line for signature in signatures]
    return [(repr(signature), line) for signature, line in operations(signatures, places)]


def _wait(leave: int) -> None:
    """Wait for the oldest executables until at most `leave` are running."""
    start = time.perf_counter()
    while len(in_flight.started) > leave:
        finished, executable = in_flight.started.popleft()
        with blaming_peers(), explained(executable):
            finished.block_until_ready()
    counters.run_seconds += time.perf_counter() - start


def fetch(value: Value) -> jax.Array:
    """The value as an array on this process's device, computed first if it is pending."""
    if value.node is not None and aside.takes(value):
        counters.reads_aside += 1
        compute_alone([value])
    if value.node is not None:
        evaluate()
    if value.node is not None:
        compute_alone([value])
    assert value.buffer is not None
    return client.to_local(value.buffer)
