"""The lazy IR: values on storages, nodes that will make them, buffers that hold them.

    torch storage ──.value──> Value ──pending──> Node ──sources──> Node | Buffer
                                   └─computed──> Buffer ──> jax.Array

A storage carries one Value. While it is pending the Value names the output of a Node; after a sync
it holds a Buffer. Nodes point at nodes and buffers, never at Values, so a Value is alive exactly as
long as some tensor can still see it: that is what decides which outputs a graph has and which of
its inputs may be donated.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from trcomp.runtime import source_lines

if TYPE_CHECKING:
    import jax
    import torch

    from trcomp.runtime.ops.registry import Rule
    from trcomp.runtime.scopes import Origin


class View(NamedTuple):
    """How a tensor lies over its storage, in elements of `dtype`."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


class Placed(NamedTuple):
    """A view whose place is an input of the graph: `view` as it would lie at the start."""

    view: View
    offset: ScalarSlot


class Output(NamedTuple):
    """What a node makes: a dense tensor of this size, stored in the order of its strides."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    num_bytes: int


class Signature:
    """All of a node but its operands: the rule, its static arguments, operand views, outputs.

    Signatures are made once per distinct call and kept for ever, so equality is identity, and a
    graph's key is a tuple of signatures and small integers.

    Attributes:
        rule: How to lower it.
        arguments: The call's positional arguments; tensors and lifted numbers are `TensorSlot`s and
            `ScalarSlot`s, lists are tuples, the rest is static.
        keywords: Its keyword-only arguments likewise, those at their default left out.
        views: How each tensor operand lies over its storage: None for a storage as a whole.
        outputs: What each output is stored as; None for "as operand 0 is".
        compute: The dtypes that the functional op itself would return, one per output; an in-place
            op computes in these and is then cast to its target's.
        present: For each return of the schema, whether there is an output: backward ops leave out
            the gradients that nobody asked for.
        line: Of the script, where the first call was.
    """

    __slots__ = ("arguments", "compute", "keywords", "line", "outputs", "present", "rule", "views")

    def __init__(
        self,
        rule: Rule,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        views: tuple[View | Placed | None, ...],
        outputs: tuple[Output | None, ...],
        compute: tuple[torch.dtype, ...] | None = None,
        present: tuple[bool, ...] | None = None,
    ) -> None:
        self.rule = rule
        self.arguments = arguments
        self.keywords = keywords
        self.views = views
        self.outputs = outputs
        if compute is None:
            compute = tuple(out.dtype for out in outputs if out is not None)
        self.compute = compute
        self.present = (True,) * len(outputs) if present is None else present
        self.line = source_lines.here()

    def __repr__(self) -> str:
        outputs = ", ".join(
            f"{o.dtype}{list(o.size)}".replace("torch.", "") if o else "stored"
            for o in self.outputs
        )
        return f"{self.rule.name} -> {outputs}"


class TensorSlot(NamedTuple):
    """Stands for a node's operand in a signature's arguments."""

    operand: int


class ScalarSlot(NamedTuple):
    """Stands for a lifted number: an input of the graph, so that its value is not in the key.

    `kind` is float, int or bool for a Python number, or the dtype of a 0-dim CPU tensor.
    """

    number: int
    kind: type | torch.dtype


class Buffer:
    """A computed array on the device, and who still sees it."""

    __slots__ = ("aval", "global_array", "local_array", "name", "owner")

    def __init__(
        self,
        local_array: jax.Array | None,
        owner: Value,
        global_array: jax.Array | None = None,
        aval: Hashable = None,
    ) -> None:
        self.local_array = local_array
        self.global_array = global_array
        self.owner = weakref.ref(owner)
        """Dead when no tensor sees the buffer any more: then a graph may overwrite it."""
        if aval is None:
            array = local_array if local_array is not None else global_array
            assert array is not None
            aval = array.shape, array.dtype
        self.aval = aval
        self.name = ""
        """What a reader knows it by, such as the place in a loader's batch."""


class Node:
    """One recorded operation; immutable."""

    __slots__ = ("origin", "scalars", "seq", "signature", "sources")

    origin: Origin
    """Where in the script it comes from; set only while somebody looks (scopes.py)."""

    def __init__(
        self,
        signature: Signature,
        sources: tuple[tuple[Node | Buffer, int], ...],
        scalars: tuple[float | int, ...],
    ) -> None:
        self.signature = signature
        self.sources = sources
        """(producer, output index) per operand; the index of a Buffer is 0."""
        self.scalars = scalars
        self.seq = next(_seq)

    def __repr__(self) -> str:
        return f"%{self.seq} = {self.signature!r}"


class Value:
    """What a storage holds now: output `index` of a pending node, or a buffer."""

    __slots__ = ("__weakref__", "buffer", "index", "node")

    node: Node | None
    buffer: Buffer | None

    def __init__(self, node: Node, index: int) -> None:
        self.node = node
        self.index = index
        self.buffer = None
        _pending.append(weakref.ref(self))

    @classmethod
    def of_array(cls, array: jax.Array) -> Value:
        """A Value that is computed already."""
        value = cls.__new__(cls)
        value.node = None
        value.index = 0
        value.buffer = Buffer(array, value)
        return value

    @classmethod
    def unasked(cls, node: Node, index: int) -> Value:
        """A Value that a sync leaves pending unless something else needs it."""
        value = cls.__new__(cls)
        value.node = node
        value.index = index
        value.buffer = None
        return value

    @classmethod
    def keeping(cls, buffer: Buffer) -> Value:
        """A Value that holds a buffer from now on: nothing overwrites it while the Value lives."""
        value = cls.__new__(cls)
        value.node = None
        value.index = 0
        value.buffer = buffer
        buffer.owner = weakref.ref(value)
        return value

    def source(self) -> tuple[Node | Buffer, int]:
        """What a node that reads this value now points at."""
        if self.node is not None:
            return self.node, self.index
        assert self.buffer is not None
        return self.buffer, 0

    def settle(self, buffer: Buffer) -> None:
        """Turn from pending to computed."""
        self.buffer = buffer
        self.node = None


_seq = itertools.count()
_pending: list[weakref.ref[Value]] = []
_owed: list[Value] = []


def owe(value: Value) -> None:
    """Have a pending value computed at the next sync even if no tensor sees it by then."""
    _owed.append(value)


def owed() -> list[Value]:
    """What the next sync computes whether or not a tensor sees it."""
    return [value for value in _owed if value.node is not None]


def owes() -> bool:
    """Whether collectives are pending: other ranks may be waiting for this one to run them."""
    return bool(_owed)


def tick() -> int:
    """A number above that of every node so far and below that of every later one."""
    return next(_seq)


class NothingToComputeError(Exception):
    """A value was asked for while recording apart, where there are none."""


_apart = False


@contextmanager
def apart() -> Iterator[None]:
    """What is recorded meanwhile is not pending, and computing anything is refused."""
    global _pending, _owed, _apart
    before = _pending, _owed, _apart
    _pending, _owed, _apart = [], [], True
    try:
        yield
    finally:
        _pending, _owed, _apart = before


def is_apart() -> bool:
    """Whether what is recorded now is none of the step's."""
    return _apart


def take_pending() -> list[Value]:
    """All live pending values in order of creation, which is the same on every rank.

    Raises:
        NothingToComputeError: This is recorded apart from the step.
    """
    if _apart:
        raise NothingToComputeError("a value was asked for that a region does not have")
    live = [value for ref in _pending if (value := ref()) is not None and value.node is not None]
    _pending.clear()
    _owed.clear()
    return live


def restore_pending(values: list[Value]) -> None:
    """Put back what `take_pending` took, after a sync that failed."""
    _pending[:0] = [weakref.ref(value) for value in values if value.node is not None]


def pending_since(seq: int) -> list[Value]:
    """Live pending values that nodes made from this number on."""
    values = (ref() for ref in _pending)
    return [v for v in values if v is not None and v.node is not None and v.node.seq >= seq]


def is_pending_beyond(nodes: set[Node]) -> bool:
    """Whether a live value is pending that none of these nodes makes."""
    values = (ref() for ref in reversed(_pending))
    return any(
        value is not None and value.node is not None and value.node not in nodes for value in values
    )


def num_pending() -> int:
    """How many values were recorded since the last sync, dead ones included."""
    return len(_pending)
