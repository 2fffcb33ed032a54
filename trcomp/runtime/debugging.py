"""Two ways to find the operator that is to blame: TRCOMP_EAGER and TRCOMP_CHECK.

Both wrap the device's kernels as they are registered, so a process without the flags pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten, tree_map

from trcomp import flags
from trcomp.errors import InternalError

Kernel = Callable[..., Any]

# Results depend on the random stream, on memory that nobody wrote, or are not tensors' values.
_NOT_COMPARED = ("empty", "set_", "resize_", "_copy_from", "_local_scalar_dense", "rand")


def wrapped(op: OpOverload, kernel: Kernel) -> Kernel:
    """`kernel` as the flags ask for it: as it is, computing at once, or compared with torch."""
    if flags.CHECK.get() and _is_comparable(op):
        return _compared(op, kernel)
    if flags.EAGER.get() or flags.CHECK.get():
        return _at_once(kernel)
    return kernel


def _at_once(kernel: Kernel) -> Kernel:
    """Each call is run before it returns: a failure points at the line of the script."""

    def call(*args: Any, **kwargs: Any) -> Any:
        from trcomp.runtime.sync import evaluate

        made = kernel(*args, **kwargs)
        evaluate()
        return made

    return call


def _is_comparable(op: OpOverload) -> bool:
    name = op._schema.name.removeprefix("aten::")
    random = torch.Tag.nondeterministic_seeded in op.tags
    return not random and not name.startswith(_NOT_COMPARED)


def _compared(op: OpOverload, kernel: Kernel) -> Kernel:
    """Each call's results are compared with torch's own on the CPU.

    Raises:
        InternalError: Shape, dtype or values differ; names the operator and its inputs.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        from trcomp.runtime.transfer import to_host

        def down(argument: Any) -> Any:
            if isinstance(argument, torch.Tensor) and argument.device.type != "cpu":
                # A clone of its own: in-place operators write into what they are given.
                return to_host(argument).clone()
            if isinstance(argument, torch.device):
                return torch.device("cpu")
            return argument

        host_args, host_kwargs = tree_map(down, args), tree_map(down, kwargs)
        made = kernel(*args, **kwargs)
        try:
            expected = op(*host_args, **host_kwargs)
        except NotImplementedError:
            return made  # an operator that torch has on devices only
        pairs = zip(_tensors(made), _tensors(expected), strict=True)
        for number, (got, wanted) in enumerate(pairs):
            problem = _difference(to_host(got) if got.device.type != "cpu" else got, wanted)
            if problem:
                shapes = [list(t.shape) for t in _tensors((args, kwargs))]
                raise InternalError(
                    f"result {number} of {op} differs from torch's on the CPU: {problem} "
                    f"(inputs of shapes {shapes})",
                    "Please report it with this line.",
                )
        return made

    return call


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def _difference(got: torch.Tensor, wanted: torch.Tensor) -> str | None:
    """What differs, in words; None if nothing does within ten times torch's usual tolerance."""
    if got.shape != wanted.shape:
        return f"shape {list(got.shape)} instead of {list(wanted.shape)}"
    if got.dtype != wanted.dtype:
        return f"dtype {got.dtype} instead of {wanted.dtype}"
    rtol, atol = torch.testing._comparison.default_tolerances(got.dtype)
    if torch.allclose(got, wanted, rtol=10 * rtol, atol=10 * atol, equal_nan=True):
        return None
    away = (got.to(torch.float64) - wanted.to(torch.float64)).abs().max().item()
    return f"values by up to {away:g}"
