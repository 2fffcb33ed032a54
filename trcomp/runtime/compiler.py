"""A graph to an XLA executable: lowers each node by its rule and compiles all of them as one."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from trcomp import flags
from trcomp.errors import InternalError
from trcomp.runtime import (
    announcements,
    causes,
    client,
    dump,
    hlo_places,
    persistent,
    precision,
    scopes,
    source_lines,
    timeline,
    views,
)
from trcomp.runtime.bodies import ARGUMENT, Body, Constant, is_region, num_operations
from trcomp.runtime.dtypes import TO_JAX, Scalar, cast, opmath
from trcomp.runtime.executable import Executable
from trcomp.runtime.graph import Graph, Place
from trcomp.runtime.ir import Node, Placed, ScalarSlot, Signature, TensorSlot, View
from trcomp.runtime.metrics import counters
from trcomp.runtime.ordering import after
from trcomp.runtime.samples import note
from trcomp.runtime.storage import storage_order

FAILED_NODE = "trcomp_failed_node"
"""Attribute of an exception: the node whose rule raised it."""
_GRAPHS_OPTION = "xla_gpu_enable_command_buffer"


@dataclass(frozen=True)
class Context:
    """What a rule may know besides its operands.

    Attributes:
        dtypes: The dtype of each output of the functional operator, before any cast to a target's.
        platform: "cpu" or "gpu": some forms run well on one of them only.
        sizes: The size of each output.
    """

    dtypes: tuple[np.dtype[Any], ...]
    sizes: tuple[tuple[int, ...], ...]
    platform: str
    num_ranks: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The first output's dtype."""
        return self.dtypes[0]

    @property
    def opmath(self) -> np.dtype[Any]:
        """The dtype in which torch computes the first output: float32 for the half types."""
        return opmath(self.dtypes[0])

    @property
    def size(self) -> tuple[int, ...]:
        """The first output's size."""
        return self.sizes[0]


class _Lowering:
    """Evaluates a graph's nodes on traced arrays."""

    def __init__(
        self,
        graph: Graph,
        leaves: Sequence[jax.Array],
        numbers: Iterable[Any],
        arguments: Sequence[jax.Array] = (),
    ) -> None:
        self._graph = graph
        self._leaves = leaves
        self._numbers = iter(numbers)
        self._arguments = arguments
        self._results: list[tuple[jax.Array, ...]] = []
        self._reads: dict[tuple[Place, View | None], jax.Array] = {}
        self._reduced: jax.Array | None = None
        """What the last collective made."""

    def outputs(self) -> list[jax.Array]:
        """The arrays of the graph's roots, each another object."""
        # jit hands an output that is an input, or another output, back as the very same array; each
        # buffer must be its own, because the next step may overwrite it.
        seen = {id(leaf) for leaf in self._leaves}
        roots = []
        for array in self.roots():
            if id(array) in seen:
                array = jnp.copy(array)
            seen.add(id(array))
            roots.append(array)
        return roots

    def roots(self, origins: Mapping[Node, str] = MappingProxyType({})) -> list[jax.Array]:
        """The arrays of the graph's roots.

        Args:
            origins: Where in the script nodes come from.
        """
        for node, places in zip(self._graph.nodes, self._graph.places, strict=True):
            try:
                with scopes.lowering(node):
                    self._results.append(self._lower(node.signature, places, node.scalars))
            except Exception as error:
                error.add_note(f"while lowering {node.signature!r}{origins.get(node, '')}")
                setattr(error, FAILED_NODE, node)
                raise
        return [self._at(place) for place in self._graph.roots]

    def _at(self, place: Place) -> jax.Array:
        node, index = place
        return self._leaves[index] if node < 0 else self._results[node][index]

    def _read(self, place: Place, view: View | Placed | None, numbers: Sequence[Any]) -> jax.Array:
        if view is None:
            return self._at(place)
        if isinstance(view, Placed):
            return views.read_at(self._at(place), view.view, numbers[view.offset.number])
        known = self._reads.get((place, view))
        if known is None:
            known = self._reads[place, view] = views.read(self._at(place), view)
        return known

    def _lower(
        self, signature: Signature, places: tuple[Place, ...], scalars: tuple[float | int, ...]
    ) -> tuple[jax.Array, ...]:
        if signature.rule is ARGUMENT:
            return (self._arguments[signature.arguments[0]],)
        numbers = [next(self._numbers) for _ in scalars]
        operands = [
            self._read(place, view, numbers)
            for place, view in zip(places, signature.views, strict=True)
        ]
        if is_region(signature):
            return self._open(signature.arguments[0], operands, numbers)
        if signature.rule.collective:
            operands[0] = after(operands[0], self._reduced)

        def resolve(argument: Any) -> Any:
            if type(argument) is TensorSlot:
                return operands[argument.operand]
            if type(argument) is ScalarSlot:
                return Scalar(numbers[argument.number], argument.kind)
            if type(argument) is tuple:
                return tuple(resolve(item) for item in argument)
            return argument

        context = Context(
            dtypes=tuple(TO_JAX[dtype] for dtype in signature.compute),
            sizes=tuple(out.size for out in signature.outputs if out is not None),
            platform=client.platform(),
            num_ranks=client.num_ranks(),
        )
        arguments = [resolve(argument) for argument in signature.arguments]
        keywords = {name: resolve(argument) for name, argument in signature.keywords.items()}
        result = signature.rule.lower(context, *arguments, **keywords)
        arrays = result if isinstance(result, (tuple, list)) else (result,)
        arrays = [array for array in arrays if array is not None]
        if len(arrays) != len(signature.outputs):
            raise InternalError(
                f"the rule of {signature.rule.name} made {len(arrays)} arrays; "
                f"{len(signature.outputs)} are due"
            )
        if signature.rule.collective:
            self._reduced = arrays[-1]
        stored = []
        for array, out in zip(arrays, signature.outputs, strict=True):
            if out is None:
                stored.append(array)
                continue
            array = cast(array, TO_JAX[out.dtype])
            if array.shape != out.size:
                raise InternalError(
                    f"the rule of {signature.rule.name} made shape {array.shape}; {out.size} is due"
                )
            stored.append(views.store(array, out))
        return tuple(stored)

    def _open(
        self, body: Body, operands: Sequence[jax.Array], numbers: Sequence[Any]
    ) -> tuple[jax.Array, ...]:
        """What a region's nodes make of a call's operands."""
        inner = [_constant(n) if isinstance(n, Constant) else numbers[n] for n in body.numbers]
        arguments, leaves = operands[: body.num_arguments], operands[body.num_arguments :]
        lowering = _Lowering(body.graph, leaves, inner, arguments)
        lowering._reduced = self._reduced
        made = tuple(lowering.roots(body.origins))
        self._reduced = lowering._reduced
        return made


def _constant(constant: Constant) -> jax.Array:
    number = constant.number
    return jnp.asarray(number, np.float64 if type(number) is float else np.int64)


def _in_order(graph: Graph, floats: Any, ints: Any) -> Iterator[Any]:
    """The graph's lifted numbers in the order in which its nodes use them."""
    next_float = next_int = 0
    for number in (number for node in graph.nodes for number in node.scalars):
        if type(number) is float:
            yield floats[next_float]
            next_float += 1
        else:
            yield ints[next_int]
            next_int += 1


def compiler_options() -> dict[str, str | bool]:
    """What XLA is told about the executables that it makes."""
    options = persistent.compiler_options()
    set_by_user = _GRAPHS_OPTION in os.environ.get("XLA_FLAGS", "")
    if flags.PROFILE_STEPS.get() and client.platform() == "gpu" and not set_by_user:
        # XLA hands kernels to a GPU in graphs, and within one a trace does not say what each is of.
        options[_GRAPHS_OPTION] = ""
    return options


def compile_graph(graph: Graph) -> Executable:
    """Trace, lower and compile a graph, or load what an earlier process made of it."""
    client.start()
    reused = _reusable(graph)
    cause = causes.note(graph)
    size = num_operations(graph)
    start = time.perf_counter()
    place = persistent.place(graph)
    compiled = persistent.load(place, collective=graph.collective)
    loaded = compiled is not None
    if compiled is not None:
        counters.loads += 1
    else:
        announcements.begin(cause, size)
        lowered = lower_graph(graph)
        compiled = lowered.compile(compiler_options())
        if flags.DEBUG.get():
            dump.write(graph, counters.compiles, lowered, compiled)
        if scopes.Asked.on:
            hlo_places.note(_program_name(), compiled)
        counters.compiles += 1
        seconds = time.perf_counter() - start
        note("compile_seconds", seconds)
        announcements.end(cause, size, seconds)
        persistent.store(place, compiled, seconds)
    spent = time.perf_counter() - start
    counters.compile_seconds += spent
    executable = Executable(
        compiled,
        reused,
        _kept(graph, reused),
        graph.collective,
        signatures=tuple(node.signature for node in graph.nodes),
        avals=tuple(leaf.aval for leaf in graph.leaves),
    )
    causes.note_cost(cause, spent)
    timeline.note_compile(
        step=counters.steps,
        seconds=spent,
        operations=size,
        num_bytes=executable.num_bytes,
        loaded=loaded,
        kind=cause.kind,
        reason=cause.text,
        line=cause.line or source_lines.here(),
    )
    return executable


def lower_graph(graph: Graph) -> jax.stages.Lowered:
    """A graph as the program that XLA compiles.

    A graph with collectives is wrapped in `shard_map` over all ranks' devices. Its arrays are
    declared replicated, and `check_vma=False` makes the program run on what each rank really holds.
    """
    client.start()
    reused = _reusable(graph)
    kept = _kept(graph, reused)

    def program(donated: Any, others: Any, floats: Any, ints: Any) -> list[jax.Array]:
        leaves: list[Any] = [None] * len(graph.leaves)
        for i, array in zip(reused, donated, strict=True):
            leaves[i] = array
        for i, array in zip(kept, others, strict=True):
            leaves[i] = array
        # The last output is ready when the whole program is; no later step overwrites it, so the
        # host can wait on it.
        return [
            *_Lowering(graph, leaves, _in_order(graph, floats, ints)).outputs(),
            jnp.zeros((), np.int32),
        ]

    if scopes.Asked.on:
        # What a trace and the dumps call the executable.
        program.__name__ = _program_name()
    fn: Any = program
    if graph.collective:
        everywhere = PartitionSpec()
        fn = jax.shard_map(
            program,
            mesh=client.mesh(),
            in_specs=everywhere,
            out_specs=everywhere,
            check_vma=False,
        )
    try:
        with precision.traced("matmul"):
            return jax.jit(fn, donate_argnums=(0,)).lower(*arguments(graph, reused, kept))
    except Exception as error:
        # JAX's last note speaks of its own frames; the last line should name the operator.
        notes = getattr(error, "__notes__", [])
        notes[:] = [note for note in notes if "JAX has removed" not in note]
        raise


def _program_name() -> str:
    return f"graph_{counters.compiles}"


def _kept(graph: Graph, reused: tuple[int, ...]) -> tuple[int, ...]:
    taken = set(reused)
    return tuple(i for i in range(len(graph.leaves)) if i not in taken)


def _reusable(graph: Graph) -> tuple[int, ...]:
    """The donated leaves whose memory some output can take over: it has their shape and dtype."""
    wanted = Counter(_stored_as(graph, place) for place in graph.roots)
    reused = []
    for i in graph.donated:
        aval = graph.leaves[i].aval
        if wanted[aval]:
            wanted[aval] -= 1
            reused.append(i)
    return tuple(reused)


def _stored_as(
    graph: Graph, place: Place, argument: Callable[[int], Hashable] | None = None
) -> Hashable:
    """Shape and dtype of the array that a storage will hold.

    Args:
        graph: Of a step, or of a region.
        place: Where the array comes from.
        argument: The same of a region's arguments.
    """
    node, index = place
    if node < 0:
        return graph.leaves[index].aval
    signature, places = graph.nodes[node].signature, graph.places[node]
    if signature.rule is ARGUMENT and argument is not None:
        return argument(signature.arguments[0])
    if is_region(signature):
        inner = signature.arguments[0].graph
        return _stored_as(inner, inner.roots[index], lambda i: _stored_as(graph, places[i]))
    out = signature.outputs[index]
    if out is None:
        return _stored_as(graph, places[0], argument)
    order = storage_order(out.size, out.stride)
    return tuple(out.size[d] for d in order), TO_JAX[out.dtype]


def arguments(graph: Graph, donated: tuple[int, ...], kept: tuple[int, ...]) -> tuple[Any, ...]:
    """What the executable of a graph is called with."""
    held = client.to_global if graph.collective else client.to_local
    return (
        [held(graph.leaves[i]) for i in donated],
        [held(graph.leaves[i]) for i in kept],
        client.numbers(graph.floats, np.float64, graph.collective),
        client.numbers(graph.ints, np.int64, graph.collective),
    )
