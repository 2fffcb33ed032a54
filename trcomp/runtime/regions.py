"""Regions: a function of device tensors, recorded once as a graph of its own, then one node a call.

    capture: placeholders --function--> nodes --> Body, with what is not constant left open
    call:    one node of the Body over the call's tensors, keys of draws and numbers

The function is run on placeholders by the device's own kernels, so a region holds exactly what the
same calls outside of one record. The compiler takes it apart again: XLA sees one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from trcomp.errors import InternalError
from trcomp.runtime import ir, rng, source_lines, storage
from trcomp.runtime.bodies import ARGUMENT, COLLECTIVE_REGION, REGION, Body, Constant
from trcomp.runtime.device import Process, check_fork
from trcomp.runtime.graph import build
from trcomp.runtime.ir import Buffer, Node, Output, Signature, Value, View
from trcomp.runtime.metrics import counters
from trcomp.runtime.placeholders import CannotCaptureError, Marks, Placeholders, signature_of
from trcomp.runtime.recording import is_device_tensor
from trcomp.runtime.source_lines import LineWatch


class Place(NamedTuple):
    """Where a result lies: over the storage of an argument, or over a new one."""

    argument: int | None
    """Position among the region's storages."""
    made: int
    """Output of the node, for a new storage."""
    view: View


class Made(NamedTuple):
    """A storage that a call makes: which output of the node, and its extent."""

    output: int
    num_bytes: int


@dataclass(eq=False)
class Region:
    """A captured function: called with tensors laid out as those of the capture.

    Attributes:
        signature: Of the node that a call records.
        storages: Which of a call's storages are the region's; a storage may come more than once.
        constants: Keeps what the function made of host values.
        draws: Places in the random stream of the keys that a call takes, as `rng.take_keys` has it.
        sources: For each number of a call: (0, draw), or (1, argument, element).
        written: (position of the argument, output) for each storage that gets a new value.
        made: The new storages.
        owed: Outputs that are computed at the next sync even if no tensor sees them.
        results: What the function returns: places of tensors, or other objects as they are.
    """

    signature: Signature
    storages: tuple[int, ...]
    constants: tuple[Value, ...]
    draws: tuple[int, ...]
    sources: tuple[tuple[int, ...], ...]
    written: tuple[tuple[int, int], ...]
    made: tuple[Made, ...]
    owed: tuple[int, ...]
    results: tuple[Any, ...]

    def __call__(
        self,
        arguments: Sequence[Any],
        storages: Sequence[Any],
        into: Mapping[int, Any] = MappingProxyType({}),
    ) -> list[Any]:
        """Record one node; the results, in order.

        Args:
            arguments: As those of the capture, and laid out alike.
            storages: Of the device tensors among them, in order.
            into: For some of the new storages, one that takes the place; its results are None.
        """
        if Process.forked:
            check_fork()
        held = [storages[i] for i in self.storages]
        node = Node(self.signature, self._operands(held), self._numbers(arguments))
        counters.recorded_nodes += 1
        if LineWatch.on or self.signature.rule.collective:
            source_lines.note(node)
        for i, output in self.written:
            storage.put(held[i], Value(node, output))
        for output in self.owed:
            ir.owe(Value(node, output))
        new: list[Any] = []
        for i, made in enumerate(self.made):  # Always in one order: it is part of a graph's key.
            value = Value(node, made.output)
            if i in into:
                into[i].value = value
                new.append(None)
            else:
                new.append(storage.over(value, made.num_bytes))
        results: list[Any] = []
        for place in self.results:
            if type(place) is not Place:
                results.append(place)
            elif place.argument is not None:
                results.append(_over(held[place.argument], place))
            else:
                target = new[place.made]
                results.append(None if target is None else _over(target, place))
        return results

    def _operands(self, held: Sequence[Any]) -> tuple[tuple[Node | Buffer, int], ...]:
        values = [each.value for each in held]
        values += self.constants
        return tuple((v.buffer, 0) if v.node is None else (v.node, v.index) for v in values)

    def _numbers(self, arguments: Sequence[Any]) -> tuple[float | int, ...]:
        keys = rng.take_keys(self.draws)
        numbers: list[float | int] = []
        for kind, position, *element in self.sources:
            if kind == 0:
                numbers.append(keys[position])
            else:
                numbers.append(_number(arguments[position], element[0]))
        return tuple(numbers)


_make_tensor = torch._C._acc.create_empty_tensor


def _over(held: Any, place: Place) -> torch.Tensor:
    view = place.view
    return storage.relayout(_make_tensor(view.size, view.dtype), held, view)


def _number(argument: Any, element: int) -> float | int:
    """A number of a host argument, as Python's float or int."""
    if isinstance(argument, torch.Tensor):
        argument = argument.reshape(-1)[element].item()
    return argument


def layouts(tensors: Sequence[torch.Tensor], storages: Sequence[Any]) -> tuple[Hashable, ...]:
    """What a capture depends on in device tensors of known dtypes and offsets.

    Args:
        tensors: On the device.
        storages: Of each.
    """
    key: list[Hashable] = []
    for tensor, held in zip(tensors, storages, strict=True):
        key += (tensor.size(), tensor.stride(), held.nbytes())
    first = {id(held): i for i, held in enumerate(storages)}
    if len(first) < len(storages):
        key += (first[id(held)] for held in storages)
    return tuple(key)


class Recording:
    """What a function left behind that was run on placeholders.

    Args:
        placeholders: Of its arguments.
        results: What it returned.
        marks: Where numbers come from that a call may change.
        draws: Those of the run.
    """

    def __init__(
        self,
        placeholders: Placeholders,
        results: Sequence[Any],
        marks: Mapping[float | int, tuple[int, ...]],
        draws: rng.Draws,
    ) -> None:
        self.placeholders = placeholders
        self.marks = marks
        self.keys = draws.keys
        try:
            self.draws = draws.places()
        except ValueError as error:
            raise CannotCaptureError(f"it moves the device's random stream: {error}") from None
        self._roots: list[Value] = []
        self.written = self._find_written()
        self.made: list[Made] = []
        self._new: dict[int, int] = {}
        self.places = [self._place(plain(result)) for result in results]
        self.owed = [self._root(value) for value in ir.owed()]
        self.used = self._find_used()
        # Arguments that only pass through are in the graph too.
        self.graph = build([*self.used.values(), *self._roots], donate=False)
        self.roots = self.graph.roots[len(self.used) :]
        self._renumber()
        self.sources: list[tuple[int, ...]] = []
        self.numbers = self._open_numbers()

    def _find_used(self) -> dict[int, Value]:
        """The arguments that the function reads, writes or returns: position to placeholder."""
        reached = set(build(self._roots, donate=False).nodes)
        kept = {place.argument for place in self.places if type(place) is Place}
        kept |= {i for i, _ in self.written}
        values = enumerate(self.placeholders.values)
        return {i: value for i, value in values if i in kept or value.node in reached}

    def _renumber(self) -> None:
        """Number the arguments as a call has them: without those that are not used."""
        known = {value.node: i for i, value in enumerate(self.used.values())}
        nodes = []
        for node in self.graph.nodes:
            if node.signature.rule is ARGUMENT:
                if node not in known:
                    raise InternalError("a region holds another region's argument")
                node = Node(signature_of(known[node], node.signature.outputs[0]), (), ())
            nodes.append(node)
        self.graph = replace(self.graph, nodes=tuple(nodes))
        position = {i: place for place, i in enumerate(self.used)}
        self.written = [(position[i], output) for i, output in self.written]
        self.places = [
            place._replace(argument=position[place.argument])
            if type(place) is Place and place.argument is not None
            else place
            for place in self.places
        ]

    def _find_written(self) -> list[tuple[int, int]]:
        written = []
        pairs = zip(self.placeholders.storages, self.placeholders.values, strict=True)
        for i, (held, value) in enumerate(pairs):
            if held.value is not value:
                if held.value.node is None:  # A host tensor was copied into it.
                    storage.assign(
                        self.placeholders.stand_ins[i], self.placeholders.stand_ins[i].clone()
                    )
                written.append((i, self._root(held.value)))
        return written

    def _root(self, value: Value) -> int:
        self._roots.append(value)
        return len(self._roots) - 1

    def _place(self, result: Any) -> Any:
        if not is_device_tensor(result):
            return result
        held: Any = result.untyped_storage()
        view = storage.view_of(result)
        argument = self.placeholders.position(held)
        if argument is not None:
            return Place(argument, 0, view)
        number = self._new.setdefault(held._cdata, len(self.made))
        if number == len(self.made):
            self.made.append(Made(self._root(held.value), held.nbytes()))
        return Place(None, number, view)

    def _open_numbers(self) -> tuple[Constant | int, ...]:
        """The graph's lifted numbers: which are constants, and which each call brings."""
        draws = {id(key): i for i, key in enumerate(self.keys)}
        places: dict[tuple[int, ...], int] = {}
        numbers: list[Constant | int] = []
        for number in (number for node in self.graph.nodes for number in node.scalars):
            source: tuple[int, ...] | None = self.marks.get(number)
            if id(number) in draws:
                source = (0, draws[id(number)])
            if source is None:
                numbers.append(Constant(number))
            else:
                numbers.append(places.setdefault(source, len(places)))
        self.sources = list(places)
        return tuple(numbers)

    def key(self) -> Hashable:
        """Equal for recordings that compute the same."""
        rows = zip(self.graph.nodes, self.graph.places, strict=True)
        shape = tuple((node.signature, places) for node, places in rows)
        return shape, self.roots, self.numbers, tuple(map(_typed, self.numbers)), self.draws

    def region(self, origin: Callable[[Node], str | None]) -> Region:
        """The recording as something to call."""
        count = len(self.used)
        return Region(
            signature=self._signature(origin, count),
            storages=tuple(self.placeholders.chosen[i] for i in self.used),
            constants=tuple(map(Value.keeping, self.graph.leaves)),
            draws=self.draws,
            sources=tuple(self.sources),
            written=tuple(self.written),
            made=tuple(self.made),
            owed=tuple(self.owed),
            results=tuple(self.places),
        )

    def _signature(self, origin: Callable[[Node], str | None], count: int) -> Signature:
        key = None if self.graph.leaves else self.key()
        known = _signatures.get(key)
        if known is not None:
            return known
        origins = {node: text for node in self.graph.nodes if (text := origin(node)) is not None}
        graph = replace(self.graph, roots=self.roots)
        body = Body(graph, self.numbers, count, origins)
        outputs = tuple(self._stored_as(place) for place in self.roots)
        views = (None,) * (count + len(self.graph.leaves))
        rule = COLLECTIVE_REGION if graph.collective else REGION
        signature = Signature(rule, (body,), {}, views, outputs)
        if key is not None:
            _signatures[key] = signature
        return signature

    def _stored_as(self, place: tuple[int, int]) -> Output | None:
        """How an output of the region is stored."""
        node, index = place
        out = self.graph.nodes[node].signature.outputs[index]
        return self._stored_as(self.graph.places[node][0]) if out is None else out


_signatures: dict[Hashable, Signature] = {}


def _typed(number: Constant | int) -> type:
    return type(number.number) if isinstance(number, Constant) else int


def plain(result: Any) -> Any:
    """A result that a call can make by itself: pending, and no number's other sign."""
    if not is_device_tensor(result):
        return result
    if result.is_conj() or result.is_neg() or storage.value_of(result).node is None:
        return result.clone()
    return result


@contextmanager
def apart() -> Iterator[rng.Draws]:
    """Record apart from the step; yields what is drawn meanwhile."""
    state, nodes = rng.get_state(), counters.recorded_nodes
    try:
        with ir.apart(), rng.watched() as draws:
            yield draws
    finally:
        rng.set_state(state)
        counters.recorded_nodes = nodes


def _recorded(
    function: Callable[[list[Any]], Sequence[Any]], arguments: Sequence[Any], seed: int
) -> Recording:
    marks = Marks(seed)
    marked = [marks.replace(i, argument) for i, argument in enumerate(arguments)]
    with apart() as draws, torch.no_grad():
        placeholders = Placeholders(marked)
        results = function(placeholders.arguments)
        return Recording(placeholders, results, marks.sources, draws)


def capture(
    function: Callable[[list[Any]], Sequence[Any]],
    arguments: Sequence[Any],
    origin: Callable[[Node], str | None] = lambda node: None,
) -> Region:
    """Record what a function does with device tensors, once.

    Args:
        function: Called with the arguments, stand-ins for the device tensors among them.
        arguments: Of a call. Floats and the numbers in host tensors may differ between calls; all
            else that is no device tensor is taken to be the same.
        origin: Where in the script a node comes from.

    Raises:
        CannotCaptureError: The function reads values, or reaches other ranks.
    """
    recording = _recorded(function, arguments, 0)
    for node in recording.graph.nodes:
        if node.signature.rule.collective:
            raise CannotCaptureError(f"{node.signature.rule.name} reaches other ranks")
    if recording.marks:
        # Were something computed from a number on the host, it would differ from run to run.
        other = _recorded(function, arguments, 1)
        if recording.key() != other.key():
            raise CannotCaptureError("the host computes with a number that may change")
    return recording.region(origin)
