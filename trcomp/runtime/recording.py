"""Recording: calls taken apart, nodes made, results put into tensors.

What a hand-written kernel needs: `record` for new tensors, `emit` and `put_back` for old ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from trcomp.runtime import scopes, source_lines, storage
from trcomp.runtime.device import DEVICE, Process, check_fork, is_on_device
from trcomp.runtime.ir import (
    Buffer,
    Node,
    Output,
    Placed,
    ScalarSlot,
    Signature,
    TensorSlot,
    Value,
    View,
)
from trcomp.runtime.metrics import counters
from trcomp.runtime.ops.registry import RULES
from trcomp.runtime.scopes import Asked
from trcomp.runtime.source_lines import LineWatch
from trcomp.runtime.windows import find_window, is_injective

Source = tuple[Node | Buffer, int]


class Lifted(NamedTuple):
    """Marks a number given to `emit` as an input of the graph."""

    number: float | int


class Stored(NamedTuple):
    """Marks a tensor given to `emit` as an operand that is its whole storage, not its view."""

    tensor: torch.Tensor


def is_device_tensor(argument: Any) -> bool:
    """Whether the argument is a tensor on the device."""
    return isinstance(argument, torch.Tensor) and is_on_device(argument)


def is_static(number: Any) -> bool:
    """Whether a number is baked into the graph: a bool, a complex, an integer beyond 64 bits."""
    if type(number) is float:
        return False
    return type(number) is not int or not -(1 << 63) <= number < 1 << 63


class Call:
    """One call taken apart: operands, lifted numbers, and the key that names its signature."""

    __slots__ = ("key", "scalars", "sources")

    def __init__(self) -> None:
        self.key: list[Any] = []
        self.sources: list[Source] = []
        self.scalars: list[float | int] = []

    def tensor(self, tensor: Any) -> None:
        """Take a tensor operand: a device tensor; a number or 0-dim CPU tensor in its place."""
        if tensor is None:
            self.key.append(None)
            return
        try:
            value: Value = tensor.untyped_storage().value
        except AttributeError:
            self.number(*as_number(tensor))
            return
        node = value.node
        self.sources.append((value.buffer, 0) if node is None else (node, value.index))  # type: ignore[arg-type]
        offset: int | None = tensor.storage_offset()
        if offset and lifts_offset(tensor, value):
            self.scalars.append(offset)
            offset = None
        self.key.append((tensor.size(), tensor.stride(), offset, tensor.dtype))

    def tensors(self, tensors: Sequence[Any] | None) -> None:
        """Take a list of tensor operands."""
        add_key, add_source = self.key.append, self.sources.append
        add_key(None if tensors is None else len(tensors))
        # As `tensor` does, within the loop: an optimizer's lists are most of a step's operands.
        for tensor in tensors or ():
            try:
                value: Value = tensor.untyped_storage().value
            except AttributeError:
                self.tensor(tensor)
                continue
            if tensor.storage_offset():
                self.tensor(tensor)
                continue
            node = value.node
            add_source((value.buffer, 0) if node is None else (node, value.index))  # type: ignore[arg-type]
            add_key((tensor.size(), tensor.stride(), 0, tensor.dtype))

    def static(self, argument: Any) -> None:
        """Take an argument that is a part of the graph."""
        self.key.append(static(argument))

    def number(self, number: Any, kind: type | torch.dtype | None = None) -> None:
        """Take a number: lifted, so that its value is not in the key, unless `is_static`."""
        if is_static(number):
            self.key.append(("=", type(number), number))
        else:
            self.scalars.append(number)
            self.key.append(kind or type(number))

    def numbers(self, numbers: Sequence[Any]) -> None:
        """Take a list of numbers; if all are the same float they share one slot."""
        self.key.append((len(numbers), all_equal(numbers)))
        for number in numbers[:1] if all_equal(numbers) else numbers:
            self.number(number)


def lifts_offset(tensor: torch.Tensor, value: Value) -> bool:
    """Whether where a tensor begins is an input of the graph, which then serves all such places.

    It is for a rectangular part, or a broadcast of one, of what is computed already, apart from
    other such parts that were written: a script may walk along it, batch by batch or time by time.
    Within a graph, XLA makes more of a place that it knows.
    """
    offset: Any = tensor.storage_offset()
    if value.node is not None and value.node.signature.rule.name != "trcomp::write_at":
        return False
    if not offset or not tensor.numel():
        return False
    num_elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    window = find_window(tensor.size(), tensor.stride(), num_elements)
    return window is not None and window.start(offset) is not None


def all_equal(numbers: Sequence[Any]) -> bool:
    """Whether these are one float, repeated."""
    return bool(numbers) and all(type(n) is float and n == numbers[0] for n in numbers)


def as_number(operand: Any) -> tuple[Any, type | torch.dtype]:
    """A number where a tensor may stand, and what it counts as in type promotion.

    torch hands a Python number over as it is; a 0-dim CPU tensor counts by its dtype.

    Raises:
        RuntimeError: It is a tensor of one or more dimensions, or on another device.
    """
    if not isinstance(operand, torch.Tensor):
        return operand, type(operand)
    if is_on_device(operand):
        storage.value_of(operand)
    if operand.dim() or operand.device.type != "cpu":
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{Process.shown or DEVICE} and {operand.device}!"
        )
    return operand.item(), operand.dtype


class Slots:
    """A call's arguments with slots in place of operands and lifted numbers; mirrors `Call`."""

    def __init__(self) -> None:
        self.views: list[View | Placed | None] = []
        self._num_scalars = 0

    def tensor(self, tensor: Any) -> Any:
        if tensor is None:
            return None
        if not is_device_tensor(tensor):
            return self.number(*as_number(tensor))
        view = storage.view_of(tensor)
        if lifts_offset(tensor, storage.value_of(tensor)):
            self.views.append(Placed(view._replace(offset=0), self.number(view.offset)))
        else:
            self.views.append(view)
        return TensorSlot(len(self.views) - 1)

    def stored(self) -> TensorSlot:
        self.views.append(None)
        return TensorSlot(len(self.views) - 1)

    def number(self, number: Any, kind: type | torch.dtype | None = None) -> Any:
        if is_static(number):
            return number
        self._num_scalars += 1
        return ScalarSlot(self._num_scalars - 1, kind or type(number))

    def numbers(self, numbers: Sequence[Any]) -> tuple[Any, ...]:
        if all_equal(numbers):
            return (self.number(numbers[0]),) * len(numbers)
        return tuple(self.number(number) for number in numbers)


def static(argument: Any) -> Any:
    """A static argument in hashable form."""
    return tuple(static(item) for item in argument) if isinstance(argument, list) else argument


def add_node(signature: Signature, call: Call) -> Node:
    """Record a node."""
    if Process.forked:
        check_fork()
    counters.recorded_nodes += 1
    node = Node(signature, tuple(call.sources), tuple(call.scalars))
    if LineWatch.on:
        source_lines.note(node)
    if Asked.on:
        scopes.note(node)
    return node


def tensors_of(node: Node) -> list[torch.Tensor]:
    """New tensors, one per output of a node."""
    outputs = node.signature.outputs
    return [storage.wrap(Value(node, i), out) for i, out in enumerate(outputs) if out is not None]


def put_back(tensor: torch.Tensor, node: Node, index: int) -> None:
    """Write output `index` of a node into a tensor, whatever part of its storage that covers."""
    put_all_back((tensor,), node, index)


def put_all_back(tensors: Sequence[torch.Tensor], node: Node, first: int = 0) -> None:
    """Write a node's outputs from number `first` on into tensors; see `put_back`."""
    outputs, put = node.signature.outputs, storage.put
    for index, tensor in enumerate(tensors, first):
        made = outputs[index]
        assert made is not None
        held = tensor.untyped_storage()
        value = Value(node, index)
        if (
            held.nbytes() == made.num_bytes
            and tensor.stride() == made.stride
            and tensor.dtype is made.dtype
            and not tensor.storage_offset()
        ):
            put(held, value)
        else:
            write(tensor, storage.wrap(value, made))


def write(tensor: torch.Tensor, update: torch.Tensor) -> None:
    """Copy a device tensor of the same size into another, which may be any view."""
    view = storage.view_of(tensor)
    if lifts_offset(tensor, storage.value_of(tensor)) and is_injective(view.size, view.stride):
        arguments = (Stored(tensor), update, view._replace(offset=0), Lifted(view.offset))
        node = emit("trcomp::write_at", arguments, [None])
    else:
        node = emit("trcomp::write", (Stored(tensor), update, view), [None])
    storage.put(tensor.untyped_storage(), Value(node, 0))


_emitted: dict[tuple[Any, ...], Signature] = {}


def emit(name: str, arguments: Sequence[Any], outputs: Sequence[Output | None]) -> Node:
    """Record a node of a rule by name, its outputs given rather than inferred.

    Args:
        name: A name in the table of lowerings.
        arguments: What the rule is called with: tensors, lists of tensors, `Stored` tensors,
            `Lifted` numbers; anything else is static and must be hashable.
        outputs: How each output is stored.
    """
    call = Call()
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            call.tensor(argument)
        elif type(argument) is Stored:
            call.sources.append(storage.value_of(argument.tensor).source())
            call.key.append("stored")
        elif type(argument) is Lifted:
            call.number(argument.number)
        elif type(argument) is list and argument and isinstance(argument[0], torch.Tensor):
            call.tensors(argument)
        else:
            call.static(argument)
    key = (name, tuple(outputs), *call.key)
    signature = _emitted.get(key)
    if signature is None:
        signature = _emitted[key] = _sign_emitted(name, arguments, outputs)
    return add_node(signature, call)


def _sign_emitted(
    name: str, arguments: Sequence[Any], outputs: Sequence[Output | None]
) -> Signature:
    slots = Slots()
    filled: list[Any] = []
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            filled.append(slots.tensor(argument))
        elif type(argument) is Stored:
            filled.append(slots.stored())
        elif type(argument) is Lifted:
            filled.append(slots.number(argument.number))
        elif type(argument) is list and argument and isinstance(argument[0], torch.Tensor):
            filled.append(tuple(slots.tensor(tensor) for tensor in argument))
        else:
            filled.append(static(argument))
    return Signature(RULES[name], tuple(filled), {}, tuple(slots.views), tuple(outputs))


def record(name: str, arguments: Sequence[Any], outputs: Sequence[Output]) -> list[torch.Tensor]:
    """`emit`, and new tensors over what it makes."""
    return tensors_of(emit(name, arguments, outputs))
