"""Operators that torch composes of others and the device keeps whole, as CUDA does with cuDNN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from trcomp.runtime.debugging import wrapped
from trcomp.runtime.dispatch import KEY, implement, library


def keep_whole(op: OpOverload, kernel: Callable[..., Any]) -> None:
    """Make `kernel` the device's kernel of `op`, with autograd and without.

    torch derives a composed operator by deriving its parts, so the kernel must be differentiable.
    """
    implement(op, kernel)
    name = op._schema.name.removeprefix("aten::")
    if op._overloadname != "default":
        name += f".{op._overloadname}"
    library.impl(name, wrapped(op, kernel), f"Autograd{KEY}")


def composed(op: OpOverload, *args: Any) -> Any:
    """What torch itself composes `op` of, for calls that a kernel does not cover."""
    return op._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args)


def is_real(*tensors: torch.Tensor) -> bool:
    """Whether all are tensors of the device.

    Fake and functional ones, of a tracer, are not, nor those that `torch.func` wraps.
    """
    if any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors)):
        return False
    return all(hasattr(tensor.untyped_storage(), "value") for tensor in tensors)


def is_traced(*tensors: torch.Tensor) -> bool:
    """Whether a tracer such as `torch.compile`'s stands behind these."""
    return any(isinstance(tensor, (FakeTensor, FunctionalTensor)) for tensor in tensors)
