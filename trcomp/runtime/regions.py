"""Regions: a function of device tensors, recorded once as a graph of its own, then one node a call.

    capture: placeholders --function--> nodes --> Body, with what is not constant left open
    call:    one node of the Body over the call's tensors, keys of draws and numbers

The function is run on placeholders by the device's own kernels, so a region holds exactly what the
same calls outside of one record. The compiler takes it apart again: XLA sees one graph.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from trcomp.errors import InternalError
from trcomp.runtime import ir, rng, storage
from trcomp.runtime.bodies import ARGUMENT, REGION, Body, Constant
from trcomp.runtime.device import Process, check_fork
from trcomp.runtime.graph import build
from trcomp.runtime.ir import Buffer, Node, Output, Signature, Value, View
from trcomp.runtime.metrics import counters
from trcomp.runtime.recording import is_device_tensor


class CannotCaptureError(Exception):
    """What a function does cannot be part of a region: it needs values, or other ranks."""


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
        num_draws: Keys that a call takes from the random stream.
        sources: For each number of a call: (0, draw), or (1, argument, element).
        written: (position of the argument, output) for each storage that gets a new value.
        made: The new storages.
        results: What the function returns: places of tensors, or other objects as they are.
    """

    signature: Signature
    storages: tuple[int, ...]
    constants: tuple[Value, ...]
    num_draws: int
    sources: tuple[tuple[int, ...], ...]
    written: tuple[tuple[int, int], ...]
    made: tuple[Made, ...]
    results: tuple[Any, ...]

    def __call__(self, arguments: Sequence[Any], storages: Sequence[Any]) -> list[Any]:
        """Record one node; the results, in order.

        Args:
            arguments: As those of the capture, and laid out alike.
            storages: Of the device tensors among them, in order.
        """
        if Process.forked:
            check_fork()
        held = [storages[i] for i in self.storages]
        node = Node(self.signature, self._operands(held), self._numbers(arguments))
        counters.recorded_nodes += 1
        for i, output in self.written:
            held[i].value = Value(node, output)
        new = [storage.over(Value(node, made.output), made.num_bytes) for made in self.made]
        return [
            _over(held[place.argument] if place.argument is not None else new[place.made], place)
            if type(place) is Place
            else place
            for place in self.results
        ]

    def _operands(self, held: Sequence[Any]) -> tuple[tuple[Node | Buffer, int], ...]:
        values = [each.value for each in held]
        values += self.constants
        return tuple((v.buffer, 0) if v.node is None else (v.node, v.index) for v in values)

    def _numbers(self, arguments: Sequence[Any]) -> tuple[float | int, ...]:
        keys = [rng.next_key() for _ in range(self.num_draws)]
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


@lru_cache(maxsize=1 << 14)
def _argument(position: int, out: Output) -> Signature:
    return Signature(ARGUMENT, (position,), {}, (), (out,))


class _Placeholders:
    """Stand-ins for a call's arguments: tensors over storages that have no value."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        self.chosen: list[int] = []
        self.stand_ins: list[torch.Tensor] = []
        """One per storage."""
        self.storages: list[Any] = []
        self.values: list[Value] = []
        self._known: dict[int, int] = {}
        self._num_tensors = 0
        self.arguments = [self._stand_in(argument) for argument in arguments]

    def position(self, held: Any) -> int | None:
        """Which argument's storage this is, if it is one."""
        return self._known.get(held._cdata)

    def _stand_in(self, argument: Any) -> Any:
        if not is_device_tensor(argument):
            return argument
        real = argument.untyped_storage()
        position = self._known.get(real._cdata)
        if position is None:
            position = self._known[real._cdata] = len(self.storages)
            self.chosen.append(self._num_tensors)
            self._add(argument, real.nbytes())
        self._num_tensors += 1
        view = storage.view_of(argument)
        stand_in = _make_tensor(view.size, view.dtype)
        storage.relayout(stand_in, self.storages[position], view)
        if position == len(self.stand_ins):
            self.stand_ins.append(stand_in)
        return stand_in

    def _add(self, argument: torch.Tensor, num_bytes: int) -> None:
        size, stride = tuple(argument.size()), argument.stride()
        if storage.is_whole(argument):
            out = storage.output(size, argument.dtype, stride)
        else:
            out = storage.output((num_bytes // argument.element_size(),), argument.dtype)
        value = Value(Node(_argument(len(self.storages), out), (), ()), 0)
        held = storage.over(value, num_bytes)
        self._known[held._cdata] = len(self.storages)
        self.storages.append(held)
        self.values.append(value)


class _Marks:
    """Numbers that a call may change, each replaced by one that occurs nowhere else.

    Where such a number turns up among a graph's lifted numbers is where a call's own goes.
    """

    def __init__(self, seed: int) -> None:
        self.sources: dict[float | int, tuple[int, ...]] = {}
        self._random = random.Random(seed)

    def replace(self, position: int, argument: Any) -> Any:
        """What to call the function with in place of an argument."""
        if type(argument) is float:
            return self._mark(torch.float64, position, 0)
        if not isinstance(argument, torch.Tensor) or argument.device.type != "cpu":
            return argument
        flat = [self._mark(argument.dtype, position, i) for i in range(argument.numel())]
        return torch.tensor(flat, dtype=argument.dtype).reshape(argument.shape)

    def _mark(self, dtype: torch.dtype, position: int, element: int) -> float | int:
        while True:
            if dtype.is_floating_point:
                number = torch.tensor(self._random.uniform(1, 2), dtype=dtype).item()
            elif dtype in (torch.int32, torch.int64):
                number = self._random.randrange(1 << 20, 1 << 31)
            else:
                raise CannotCaptureError(f"a host tensor of {dtype} takes part")
            if number not in self.sources:
                self.sources[number] = (1, position, element)
                return number


class _Recording:
    """One run of a function on placeholders, and what it left behind."""

    def __init__(
        self, function: Callable[[list[Any]], Sequence[Any]], arguments: Sequence[Any], seed: int
    ) -> None:
        self.marks = _Marks(seed)
        marked = [self.marks.replace(i, argument) for i, argument in enumerate(arguments)]
        with _apart() as keys:
            self.placeholders = _Placeholders(marked)
            self.results = [_plain(made) for made in function(self.placeholders.arguments)]
            self._roots: list[Value] = []
            self.written = self._find_written()
            self.made: list[Made] = []
            self._new: dict[int, int] = {}
            self.places = [self._place(result) for result in self.results]
        self.keys = keys
        # Arguments that only pass through, or that nothing reads, are in the graph too.
        self.graph = build([*self.placeholders.values, *self._roots], donate=False)
        self.roots = self.graph.roots[len(self.placeholders.values) :]
        self._check()
        self.sources: list[tuple[int, ...]] = []
        self.numbers = self._open_numbers()

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

    def _check(self) -> None:
        known = {value.node for value in self.placeholders.values}
        for node in self.graph.nodes:
            if node.signature.rule.collective:
                raise CannotCaptureError(f"{node.signature.rule.name} reaches other ranks")
            if node.signature.rule is ARGUMENT and node not in known:
                raise InternalError("a region holds another region's argument")

    def _open_numbers(self) -> tuple[Constant | int, ...]:
        """The graph's lifted numbers: which are constants, and which each call brings."""
        draws = {id(key): i for i, key in enumerate(self.keys)}
        places: dict[tuple[int, ...], int] = {}
        numbers: list[Constant | int] = []
        for number in (number for node in self.graph.nodes for number in node.scalars):
            source: tuple[int, ...] | None = self.marks.sources.get(number)
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
        return shape, self.roots, self.numbers, tuple(map(_typed, self.numbers))

    def region(self, origin: Callable[[Node], str | None]) -> Region:
        """The recording as something to call."""
        count = len(self.placeholders.storages)
        return Region(
            signature=self._signature(origin, count),
            storages=tuple(self.placeholders.chosen),
            constants=tuple(map(Value.keeping, self.graph.leaves)),
            num_draws=len(self.keys),
            sources=tuple(self.sources),
            written=tuple(self.written),
            made=tuple(self.made),
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
        signature = Signature(REGION, (body,), {}, views, outputs)
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


def _plain(result: Any) -> Any:
    """A result that a call can make by itself: pending, and no number's other sign."""
    if not is_device_tensor(result):
        return result
    if result.is_conj() or result.is_neg() or storage.value_of(result).node is None:
        return result.clone()
    return result


@contextmanager
def _apart() -> Iterator[list[int]]:
    """Record apart from the step; yields the keys that are drawn meanwhile."""
    state, nodes = rng.get_state(), counters.recorded_nodes
    with ir.apart(), rng.watched() as keys, torch.no_grad():
        yield keys
    rng.set_state(state)
    counters.recorded_nodes = nodes


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
    recording = _Recording(function, arguments, 0)
    if recording.marks.sources:
        # Were something computed from a number on the host, it would differ from run to run.
        other = _Recording(function, arguments, 1)
        if recording.key() != other.key():
            raise CannotCaptureError("the host computes with a number that may change")
    return recording.region(origin)
