"""From an aten call to a node: recorders, made from an operator's schema and its lowering rule.

One rule per functional operator serves its in-place and `out=` forms too. Shapes, strides and
dtypes of results come from torch's own meta kernels, once per distinct call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from trcomp.runtime import overdue, storage
from trcomp.runtime.debugging import wrapped
from trcomp.runtime.device import NAME
from trcomp.runtime.ir import Node, Output, Signature, num_pending
from trcomp.runtime.ops.registry import EXACT_OUT, REFUSALS, RULES, Rule, find
from trcomp.runtime.recording import (
    Call,
    Slots,
    add_node,
    is_device_tensor,
    put_all_back,
    put_back,
    static,
    tensors_of,
)
from trcomp.runtime.storage import output

library = torch.library.Library("aten", "IMPL")
KEY = "PrivateUse1"


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


def is_default(number: Any, default: Any) -> bool:
    """Whether a number is its argument's default, which the graph may rely on.

    A float 1.0 where the default is an int 1 is not: it may be one value of a schedule.
    """
    return number is None or (type(number) is type(default) and bool(number == default))


_TAKERS: dict[Kind, Callable[[Call, Any], None]] = {
    Kind.TENSOR: Call.tensor,
    Kind.TENSORS: Call.tensors,
    Kind.NUMBERS: Call.numbers,
    Kind.STATIC: Call.static,
}
"""How a call takes an argument of each kind; one function per argument is quicker than a choice."""


def _number_unless(default: Any) -> Callable[[Call, Any], None]:
    def take(call: Call, number: Any) -> None:
        if is_default(number, default):
            call.key.append(("=", type(number), number))
        else:
            call.number(number)

    return take


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
        self._fitting: set[tuple[Any, ...]] = set()
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
        self._takers = [
            _number_unless(default) if kind is Kind.NUMBER else _TAKERS[kind]
            for kind, default in zip(self._kinds, self._defaults, strict=True)
        ]
        returns = self.op._schema.returns
        self._returns_list = len(returns) == 1 and str(returns[0].type) == "List[Tensor]"
        self._returns_one = len(returns) == 1 and not self._returns_list

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outs = [kwargs.pop(name) for name in self._outs] if self._outs else None
        if kwargs or len(args) != len(self._kinds):
            args = self._fill(args, kwargs)
        node = self._record(args)
        if outs is not None:
            self._check_outs(node.signature, args, outs)
            return self._put_out(outs, node)
        if self._in_place:
            put_all_back(args[0] if type(args[0]) in (list, tuple) else (args[0],), node)
            return args[0] if self.called._schema.returns else None
        return self._wrap(node)

    def _record(self, args: Sequence[Any]) -> Node:
        call = self._take_apart(args)
        key = tuple(call.key)
        signature = self._signatures.get(key)
        if signature is None:
            signature = self._signatures[key] = self._sign(args)
        if num_pending() >= overdue.LIMIT and overdue.cuts_before(signature):
            return self._record(args)
        return add_node(signature, call)

    def _take_apart(self, args: Sequence[Any]) -> Call:
        call = Call()
        # As many as there are: `__call__` has filled the rest in, and strict costs a third.
        for take, argument in zip(self._takers, args):  # noqa: B905
            take(call, argument)
        return call

    def _fill(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        rest = zip(self._names[len(args) :], self._defaults[len(args) :], strict=True)
        return (*args, *(kwargs.get(name, default) for name, default in rest))

    def _sign(self, args: Sequence[Any]) -> Signature:
        slots = Slots()
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
        if self.rule.name in REFUSALS:
            REFUSALS[self.rule.name](*args)
        places = None
        if self._returns_list and self.rule.name.startswith("_foreach_"):
            args, places = distinct(args)
        try:
            result = self._call(self.op, tree_map(to_meta, list(args)))
        except TypeError:
            if not (is_device_tensor(args[0]) and args[0].numel() == 0):
                raise
            # The meta kernels of upsampling break on an empty batch; the CPU's do not.
            result = self._call(self.op, tree_map(partial(to_meta, device="cpu"), list(args)))
        returned = list(result) if isinstance(result, (list, tuple)) else [result]
        made = [tensor for tensor in returned if tensor is not None]
        outputs = tuple(described(tensor) for tensor in made)
        if self._in_place:
            self._call(self.called, tree_map(to_meta, list(args)))
            targets = args[0] if isinstance(args[0], (list, tuple)) else (args[0],)
            outputs = tuple(described(tensor) for tensor in targets)
        dtypes = tuple(tensor.dtype for tensor in made)
        if places is not None:
            outputs = tuple(outputs[i] for i in places)
            dtypes = tuple(dtypes[i] for i in places)
            return outputs, dtypes, (True,) * len(places)
        return outputs, dtypes, tuple(tensor is not None for tensor in returned)

    def _call(self, op: OpOverload, arguments: Sequence[Any], **outs: torch.Tensor) -> Any:
        """Call a form of the operator with stand-ins for all arguments, in their order."""
        count = self._num_positional
        keywords = dict(zip(self._names[count:], arguments[count:], strict=True))
        return op(*arguments[:count], **keywords, **outs)

    def _wrap(self, node: Node) -> Any:
        made = tensors_of(node)
        if self._returns_one:
            return made[0]
        if self._returns_list:
            return made
        rest = iter(made)
        return tuple(next(rest) if present else None for present in node.signature.present)

    def _check_outs(
        self, signature: Signature, args: Sequence[Any], outs: Sequence[torch.Tensor]
    ) -> None:
        """Ask torch's meta kernel, once per distinct call, whether the results fit these dtypes.

        Raises:
            RuntimeError: One does not, or a tensor shows an element of its storage repeatedly.
        """
        if any(torch._debug_has_internal_overlap(out) == 1 for out in outs):
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to a "
                "single memory location. Please clone() the tensor before performing the operation."
            )
        key = (signature, *(out.dtype for out in outs))
        if key in self._fitting:
            return
        into: dict[str, torch.Tensor] = {}
        for name, made, out in zip(self._outs, signature.outputs, outs, strict=True):
            size = made.size if made is not None else out.size()
            if made is not None and made.dtype != out.dtype and self.rule.name in EXACT_OUT:
                raise RuntimeError(f"Expected {name} to have dtype {made.dtype}, not {out.dtype}")
            into[name] = torch.empty(size, dtype=out.dtype, device="meta")
        with contextlib.suppress(NotImplementedError):
            self._call(self.called, tree_map(to_meta, list(args)), **into)
        self._fitting.add(key)

    def _put_out(self, outs: list[torch.Tensor], node: Node) -> Any:
        for i, (tensor, made) in enumerate(zip(outs, node.signature.outputs, strict=True)):
            if made is not None and tuple(tensor.size()) != made.size:
                tensor.resize_(made.size)
            put_back(tensor, node, i)
        return outs[0] if len(outs) == 1 else tuple(outs)


def distinct(args: Sequence[Any]) -> tuple[Sequence[Any], list[int] | None]:
    """The arguments of a foreach operator with one element of each kind, and which stands for each.

    It does to each element what it would do to it alone, and a model has hundreds of parameters
    but few shapes. Lists that torch would refuse are left as they are, and so is a tensor that
    holds a number for each element.
    """
    if any(isinstance(argument, torch.Tensor) and argument.dim() for argument in args):
        return args, None
    at = [i for i, argument in enumerate(args) if isinstance(argument, (list, tuple))]
    columns = [args[i] for i in at]
    if len({len(column) for column in columns}) != 1:
        return args, None
    kinds: dict[Any, int] = {}
    rows = list(zip(*columns, strict=True))
    places = [kinds.setdefault(tuple(map(_kind, row)), len(kinds)) for row in rows]
    chosen = [places.index(kind) for kind in range(len(kinds))]
    fewer = list(args)
    for i, column in zip(at, columns, strict=True):
        fewer[i] = [column[row] for row in chosen]
    return fewer, places


def _kind(element: Any) -> Any:
    if not isinstance(element, torch.Tensor):
        return type(element)
    return (element.size(), element.stride(), element.dtype, element.device)


def to_meta(argument: Any, device: str = "meta") -> Any:
    """An argument for torch's meta kernels: device tensors become meta tensors laid out alike."""
    if is_device_tensor(argument):
        return torch.empty_strided(
            argument.size(), argument.stride(), dtype=argument.dtype, device=device
        )
    if isinstance(argument, torch.device) and argument.type == NAME:
        return torch.device(device)
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
