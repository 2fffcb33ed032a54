"""From an aten call to a node: recorders, made from an operator's schema and its lowering rule.

One rule per functional operator serves its in-place and `out=` forms too. Shapes, strides and
dtypes of results come from torch's own meta kernels, once per distinct call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from trcomp.runtime import storage
from trcomp.runtime.debugging import wrapped
from trcomp.runtime.device import DEVICE, NAME, Process, check_fork
from trcomp.runtime.ir import (
    Buffer,
    Node,
    Output,
    ScalarSlot,
    Signature,
    TensorSlot,
    Value,
    View,
)
from trcomp.runtime.metrics import counters
from trcomp.runtime.ops.registry import RULES, Rule, find
from trcomp.runtime.storage import output

library = torch.library.Library("aten", "IMPL")
KEY = "PrivateUse1"

Source = tuple[Node | Buffer, int]


class Kind(Enum):
    """What an argument of a schema is to the recorder."""

    TENSOR = auto()
    TENSORS = auto()
    NUMBER = auto()
    NUMBERS = auto()
    STATIC = auto()


_KINDS = {
    "Tensor": Kind.TENSOR,
    "Optional[Tensor]": Kind.TENSOR,
    "List[Tensor]": Kind.TENSORS,
    "List[Optional[Tensor]]": Kind.TENSORS,
    "Optional[List[Tensor]]": Kind.TENSORS,
    "number": Kind.NUMBER,
    "float": Kind.NUMBER,
    "Optional[number]": Kind.NUMBER,
    "Optional[float]": Kind.NUMBER,
    "List[number]": Kind.NUMBERS,
}


class Lifted(NamedTuple):
    """Marks a number given to `emit` as an input of the graph."""

    number: float | int


class Stored(NamedTuple):
    """Marks a tensor given to `emit` as an operand that is its whole storage, not its view."""

    tensor: torch.Tensor


def is_device_tensor(argument: Any) -> bool:
    """Whether the argument is a tensor on the device."""
    return isinstance(argument, torch.Tensor) and argument.device.type == NAME


def is_static(number: Any) -> bool:
    """Whether a number is baked into the graph: a bool, a complex, an integer beyond 64 bits."""
    if type(number) is float:
        return False
    return type(number) is not int or not -(1 << 63) <= number < 1 << 63


def is_default(number: Any, default: Any) -> bool:
    """Whether a number is its argument's default, which the graph may rely on.

    A float 1.0 where the default is an int 1 is not: it may be one value of a schedule.
    """
    return number is None or (type(number) is type(default) and bool(number == default))


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
        self.key.append((tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.dtype))

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
    if operand.device.type == NAME:
        storage.value_of(operand)
    if operand.dim() or operand.device.type != "cpu":
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{DEVICE} and {operand.device}!"
        )
    return operand.item(), operand.dtype


class _Slots:
    """A call's arguments with slots in place of operands and lifted numbers; mirrors `Call`."""

    def __init__(self) -> None:
        self.views: list[View | None] = []
        self._num_scalars = 0

    def tensor(self, tensor: Any) -> Any:
        if tensor is None:
            return None
        if not is_device_tensor(tensor):
            return self.number(*as_number(tensor))
        self.views.append(storage.view_of(tensor))
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
    return Node(signature, tuple(call.sources), tuple(call.scalars))


class Recorder:
    """Records calls of one operator overload as nodes.

    Args:
        op: The functional overload; its meta kernel tells what comes out.
        rule: How it is lowered.
        target: The overload that is called, if it is the in-place or `out=` form of `op`.
    """

    def __init__(self, op: OpOverload, rule: Rule, target: OpOverload | None = None) -> None:
        self.op = op
        self.rule = rule
        self.called = target or op
        self._signatures: dict[tuple[Any, ...], Signature] = {}
        arguments = [a for a in self.called._schema.arguments if not a.is_out]
        self._outs = [a.name for a in self.called._schema.arguments if a.is_out]
        self._in_place = target is not None and not self._outs
        self._names = [a.name for a in arguments]
        self._num_positional = sum(not a.kwarg_only for a in arguments)
        self._kinds = [
            Kind.STATIC if a.name in rule.static else _KINDS.get(str(a.type), Kind.STATIC)
            for a in arguments
        ]
        self._defaults = [a.default_value if a.has_default_value() else None for a in arguments]
        returns = self.op._schema.returns
        self._returns_list = len(returns) == 1 and str(returns[0].type) == "List[Tensor]"
        self._returns_one = len(returns) == 1 and not self._returns_list

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outs = [kwargs.pop(name) for name in self._outs] if self._outs else None
        if kwargs or len(args) != len(self._kinds):
            args = self._fill(args, kwargs)
        call = self._take_apart(args)
        key = tuple(call.key)
        signature = self._signatures.get(key)
        if signature is None:
            signature = self._signatures[key] = self._sign(args)
        node = add_node(signature, call)
        if outs is not None:
            return self._put_out(outs, node)
        if self._in_place:
            targets = args[0] if type(args[0]) in (list, tuple) else (args[0],)
            for i, tensor in enumerate(targets):
                put_back(tensor, node, i)
            return args[0] if self.called._schema.returns else None
        return self._wrap(node)

    def _take_apart(self, args: Sequence[Any]) -> Call:
        call = Call()
        for kind, argument, default in zip(self._kinds, args, self._defaults, strict=True):
            if kind is Kind.TENSOR:
                call.tensor(argument)
            elif kind is Kind.STATIC:
                call.key.append(static(argument))
            elif kind is Kind.NUMBER:
                if is_default(argument, default):
                    call.key.append(("=", type(argument), argument))
                else:
                    call.number(argument)
            elif kind is Kind.TENSORS:
                call.key.append(None if argument is None else len(argument))
                for tensor in argument or ():
                    call.tensor(tensor)
            else:
                call.numbers(argument)
        return call

    def _fill(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        rest = zip(self._names[len(args) :], self._defaults[len(args) :], strict=True)
        return (*args, *(kwargs.get(name, default) for name, default in rest))

    def _sign(self, args: Sequence[Any]) -> Signature:
        slots = _Slots()
        filled: list[Any] = []
        for kind, argument, default in zip(self._kinds, args, self._defaults, strict=True):
            if kind is Kind.TENSOR:
                filled.append(slots.tensor(argument))
            elif kind is Kind.STATIC or argument is None:
                filled.append(static(argument))
            elif kind is Kind.NUMBER:
                baked = is_default(argument, default)
                filled.append(argument if baked else slots.number(argument))
            elif kind is Kind.TENSORS:
                filled.append(tuple(slots.tensor(tensor) for tensor in argument))
            else:
                filled.append(slots.numbers(argument))
        count = self._num_positional
        keywords = {
            name: value
            for name, value, default in zip(
                self._names[count:], filled[count:], self._defaults[count:], strict=True
            )
            if value != default
        }
        outputs, compute, present = self._infer(args)
        return Signature(
            self.rule,
            tuple(filled[:count]),
            keywords,
            tuple(slots.views),
            outputs,
            compute,
            present,
        )

    def _infer(
        self, args: Sequence[Any]
    ) -> tuple[tuple[Output, ...], tuple[torch.dtype, ...], tuple[bool, ...]]:
        """Ask torch's meta kernel what comes out; it raises what torch raises for bad arguments."""
        if self.rule.one_dtype:
            check_one_dtype(self.rule.name, args)
        count = self._num_positional
        meta = tree_map(to_meta, list(args))
        keywords = dict(zip(self._names[count:], meta[count:], strict=True))
        result = self.op(*meta[:count], **keywords)
        returned = list(result) if isinstance(result, (list, tuple)) else [result]
        made = [tensor for tensor in returned if tensor is not None]
        outputs = tuple(described(tensor) for tensor in made)
        if self._in_place:
            meta = tree_map(to_meta, list(args))
            self.called(*meta[:count], **dict(zip(self._names[count:], meta[count:], strict=True)))
            targets = args[0] if isinstance(args[0], (list, tuple)) else (args[0],)
            outputs = tuple(described(tensor) for tensor in targets)
        return (
            outputs,
            tuple(tensor.dtype for tensor in made),
            tuple(tensor is not None for tensor in returned),
        )

    def _wrap(self, node: Node) -> Any:
        made = tensors_of(node)
        if self._returns_one:
            return made[0]
        if self._returns_list:
            return made
        rest = iter(made)
        return tuple(next(rest) if present else None for present in node.signature.present)

    def _put_out(self, outs: list[torch.Tensor], node: Node) -> Any:
        for i, (tensor, made) in enumerate(zip(outs, node.signature.outputs, strict=True)):
            if made is not None and tuple(tensor.size()) != made.size:
                tensor.resize_(made.size)
            put_back(tensor, node, i)
        return outs[0] if len(outs) == 1 else tuple(outs)


def to_meta(argument: Any) -> Any:
    """An argument for torch's meta kernels: device tensors become meta tensors laid out alike."""
    if is_device_tensor(argument):
        return torch.empty_strided(
            argument.size(), argument.stride(), dtype=argument.dtype, device="meta"
        )
    if isinstance(argument, torch.device) and argument.type == NAME:
        return torch.device("meta")
    return argument


def check_one_dtype(name: str, arguments: Sequence[Any]) -> None:
    """Refuse tensors of several dtypes.

    Raises:
        RuntimeError: There are two, as where a layer's input was not cast.
    """
    dtypes = [a.dtype for a in arguments if isinstance(a, torch.Tensor)]
    if len(set(dtypes)) > 1:
        raise RuntimeError(
            f"{name} expects tensors of the same dtype, but got {', '.join(map(str, dtypes))}"
        )


def described(tensor: torch.Tensor) -> Output:
    """How a result like this tensor is stored: in its own strides if they are dense."""
    size, stride = tuple(tensor.size()), tensor.stride()
    return output(size, tensor.dtype, stride if storage.is_dense(size, stride) else None)


def tensors_of(node: Node) -> list[torch.Tensor]:
    """New tensors, one per output of a node."""
    outputs = node.signature.outputs
    return [storage.wrap(Value(node, i), out) for i, out in enumerate(outputs) if out is not None]


def put_back(tensor: torch.Tensor, node: Node, index: int) -> None:
    """Write output `index` of a node into a tensor, whatever part of its storage that covers."""
    made = node.signature.outputs[index]
    assert made is not None
    held = tensor.untyped_storage()
    if (
        tensor.dtype is made.dtype
        and tensor.stride() == made.stride
        and not tensor.storage_offset()
        and held.nbytes() == made.num_bytes
    ):
        held.value = Value(node, index)  # type: ignore[attr-defined]
        return
    update = storage.wrap(Value(node, index), made)
    write(tensor, update)


def write(tensor: torch.Tensor, update: torch.Tensor) -> None:
    """Copy a device tensor of the same size into another, which may be any view."""
    node = emit("trcomp::write", (Stored(tensor), update, storage.view_of(tensor)), [None])
    tensor.untyped_storage().value = Value(node, 0)  # type: ignore[attr-defined]


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
            call.key.append(len(argument))
            for tensor in argument:
                call.tensor(tensor)
        else:
            call.key.append(static(argument))
    key = (name, tuple(outputs), *call.key)
    signature = _emitted.get(key)
    if signature is None:
        signature = _emitted[key] = _sign_emitted(name, arguments, outputs)
    return add_node(signature, call)


def _sign_emitted(
    name: str, arguments: Sequence[Any], outputs: Sequence[Output | None]
) -> Signature:
    slots = _Slots()
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


def _same_arguments(left: OpOverload, right: OpOverload) -> bool:
    names = [
        [(a.name, str(a.type)) for a in op._schema.arguments if not a.is_out]
        for op in (left, right)
    ]
    return names[0] == names[1]


def variants(op: OpOverload) -> list[OpOverload]:
    """The in-place and `out=` overloads that take the arguments of a functional one."""
    base = op._schema.name.split("::")[1]
    found = [other for other in overloads(base + "_") if _same_arguments(op, other)]
    for other in overloads(base):
        outs = [a for a in other._schema.arguments if a.is_out]
        if outs and len(outs) == len(other._schema.returns) and _same_arguments(op, other):
            found.append(other)
    return found


def overloads(base: str) -> list[OpOverload]:
    """All overloads of an aten operator; none if there is no such operator."""
    packet = getattr(torch.ops.aten, base, None)
    names = packet.overloads() if packet is not None else ()
    return [getattr(packet, name) for name in names]


_registered: set[str] = set()


def implement(op: OpOverload, kernel: Callable[..., Any]) -> None:
    """Make `kernel` the device's kernel of an aten overload; the first registration stays."""
    name = op._schema.name.split("::")[1]
    if op._overloadname != "default":
        name += f".{op._overloadname}"
    if name in _registered:
        return
    _registered.add(name)
    library.impl(name, wrapped(op, kernel), KEY)


def registered() -> frozenset[str]:
    """Names of the aten overloads that have a kernel on the device."""
    return frozenset(_registered)


def implements(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function the device's kernel of aten overloads, by name."""

    def register(kernel: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            implement(find(name), kernel)
        return kernel

    return register


def register_rules() -> None:
    """Register a recorder for each rule of the table, and for its in-place and `out=` forms."""
    for name, rule in RULES.items():
        if "::" in name:
            continue
        op = find(name)
        if op._schema.is_mutable:
            continue
        implement(op, Recorder(op, rule).__call__)
        for target in variants(op):
            implement(target, Recorder(op, rule, target).__call__)
