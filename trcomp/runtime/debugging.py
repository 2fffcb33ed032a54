"""Two ways to find the operator that is to blame: TRCOMP_EAGER and TRCOMP_CHECK.

Both wrap the device's kernels as they are registered, so a process without the flags pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten, tree_map

from trcomp import flags
from trcomp.errors import InternalError
from trcomp.runtime.device import NAME

Kernel = Callable[..., Any]

_AUTOCAST = torch._C.DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]
_COMPOSED = "CompositeImplicitAutograd"
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
    return not random and not _is_view(op) and not name.startswith(_NOT_COMPARED)


def _is_view(op: OpOverload) -> bool:
    """Whether it only lays a tensor out, over a storage that its copy on the host has not."""
    kinds = [returned.alias_info for returned in op._schema.returns]
    return bool(kinds) and all(kind is not None and not kind.is_write for kind in kinds)


def _casts_within(op: OpOverload) -> bool:
    """Whether autocast acts on the parts of a composed operator, which are compared themselves."""
    return (
        torch.is_autocast_enabled(NAME)
        and not torch._C._dispatch_tls_is_dispatch_key_excluded(_AUTOCAST)
        and torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), _COMPOSED)
    )


def _compared(op: OpOverload, kernel: Kernel) -> Kernel:
    """Each call's results are compared with torch's own on the CPU.

    Raises:
        InternalError: Shape, dtype or values differ; names the operator and its inputs.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        from trcomp.runtime.transfer import to_host

        if _casts_within(op):
            return kernel(*args, **kwargs)

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
        changed = zip(_written(op, args, kwargs), _written(op, host_args, host_kwargs), strict=True)
        results = zip(_tensors(made), _tensors(expected), strict=True)
        for number, (got, wanted) in enumerate([*results, *changed]):
            problem = _difference(to_host(got) if got.device.type != "cpu" else got, wanted)
            if problem:
                given = ", ".join(_described(t) for t in _tensors((args, kwargs)))
                raise InternalError(
                    f"result {number} of {op} differs from torch's on the CPU: {problem} "
                    f"(of {given})",
                    _next_step(),
                )
        return made

    return call


def _written(op: OpOverload, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The arguments that a call writes into and does not return."""
    if any(returned.alias_info for returned in op._schema.returns):
        return []
    names = [argument.name for argument in op._schema.arguments]
    values = {**dict(zip(names, args, strict=False)), **kwargs}
    written = [a.name for a in op._schema.arguments if a.alias_info and a.alias_info.is_write]
    return _tensors([values.get(name) for name in written])


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def _described(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}".removeprefix("torch.")


def _next_step() -> str:
    step = "Please report it with this line."
    if torch._C._current_autograd_node() is None:
        return step
    return f"{step} torch.autograd.set_detect_anomaly(True) shows which line of forward it is of."


def _difference(got: torch.Tensor, wanted: torch.Tensor) -> str | None:
    """What differs, in words; None if nothing does within ten times torch's usual tolerance.

    Where terms cancel, a result near zero is as exact as its largest neighbour is.
    """
    if got.shape != wanted.shape:
        return f"shape {list(got.shape)} instead of {list(wanted.shape)}"
    if got.dtype != wanted.dtype:
        return f"dtype {got.dtype} instead of {wanted.dtype}"
    rtol, atol = torch.testing._comparison.default_tolerances(got.dtype)
    wide = torch.complex128 if got.is_complex() else torch.float64
    largest = wanted.to(wide).abs().nan_to_num(0, 0, 0).max().item() if wanted.numel() else 0
    atol = max(10 * atol, rtol * largest)
    near = torch.isclose(got, wanted, rtol=10 * rtol, atol=atol, equal_nan=True)
    if near.all():
        return None
    away = (got.to(wide) - wanted.to(wide)).abs().nan_to_num(torch.inf).masked_fill(near, 0)
    place = np.unravel_index(int(away.argmax()), tuple(got.shape))
    where = [int(i) for i in place]
    return (
        f"values, in {int((~near).sum())} of {near.numel()} elements; at {where} "
        f"{got[place].item():g} instead of {wanted[place].item():g}"
    )
