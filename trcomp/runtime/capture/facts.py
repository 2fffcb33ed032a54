"""Facts: what a captured step depends on at one place, to compare and to put in words."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import torch

from trcomp.runtime.device import is_on_device


class CannotWatchError(Exception):
    """What a function can reach cannot be compared between calls; the message says which."""


NO_GRADIENT = "no gradient"


class TensorFact(NamedTuple):
    """Which tensor lies somewhere, and how it is laid out."""

    identity: int
    on_device: bool
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    place: int

    def is_like(self, other: Any) -> bool:
        """Whether one may take the other's place in a step."""
        return isinstance(other, TensorFact) and self[1:-1] == other[1:-1]


def of_tensor(tensor: torch.Tensor) -> TensorFact:
    """Which it is, and its layout."""
    return TensorFact(
        id(tensor),
        is_on_device(tensor),
        tuple(tensor.size()),
        tensor.stride() if tensor.layout is torch.strided else (),
        tensor.dtype,
        tensor.requires_grad,
        tensor.data_ptr() if is_on_device(tensor) else 0,
    )


def of_gradient(gradient: torch.Tensor | None) -> Hashable:
    """Of a gradient, only the layout: each backward pass may make another tensor."""
    if gradient is None:
        return NO_GRADIENT
    if gradient.grad_fn is not None:
        raise CannotWatchError("a gradient has a history (create_graph)")
    return ("gradient", tuple(gradient.size()), gradient.stride(), gradient.dtype)


def change(was: Any, now: Any) -> str:
    """How two facts differ, in words."""
    if isinstance(was, TensorFact) and isinstance(now, TensorFact):
        names = ("requires_grad", "shape", "dtype", "stride")
        for name in names:
            old, new = getattr(was, name), getattr(now, name)
            if old != new:
                return f"was {name}={old} and is {name}={new}"
        return "is another tensor"
    old, new = words(was), words(now)
    return f"was {old} and is {new}" if old != new else "is another object"


def words(fact: Any) -> str:
    """A fact in words."""
    if isinstance(fact, TensorFact):
        return f"a tensor of shape {list(fact.shape)}"
    if isinstance(fact, str):
        return fact
    kind, *rest = fact
    if kind in ("object", "class"):
        return f"a {rest[0]}" if kind == "object" else f"class {rest[0]}"
    if kind == "function":
        return f"the function at line {rest[0].co_firstlineno}"
    if kind == "length":
        return f"of length {rest[0]}"
    if kind == "gradient":
        return f"a gradient of shape {list(rest[0])}"
    if kind in ("keys", "attributes", "set"):
        return f"with {', '.join(map(str, rest[-8:])) or 'nothing'}"
    return repr(rest[0]) if rest else str(kind)
