"""PyTorch's own operator samples on the device and on the CPU, compared; many per executable."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_map

import trcomp.runtime
from tests.runtime.agreement import TOLERANCES
from trcomp.runtime.device import DEVICE
from trcomp.runtime.metrics import counters

DTYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16)


TIES = {"sort", "argsort", "topk", "kthvalue", "median", "nanmedian"}
"""Which of several equal elements these name is up to the device: values alone are compared."""


@dataclass
class Case:
    """One sample of one operator: what the CPU gives, what the device will give."""

    label: str
    expected: list[Any]
    actual: list[Any] = field(default_factory=list)
    error: str | None = None


def find_ops(names: Iterable[str]) -> list[OpInfo]:
    """Every variant of the operators with these names."""
    wanted = set(names)
    return [op for op in op_db if op.name in wanted]


def samples(op: OpInfo, dtype: torch.dtype, limit: int) -> list[SampleInput]:
    """The first samples of an operator in a dtype; none if the CPU lacks it there."""
    if dtype not in op.supported_dtypes("cpu"):
        return []
    torch.manual_seed(0)
    return list(itertools.islice(op.sample_inputs("cpu", dtype), limit))


def to_device(argument: Any) -> Any:
    """A tensor's copy on the device, in its own strides."""
    if isinstance(argument, torch.Tensor):
        return argument.detach().to(DEVICE)
    return DEVICE if isinstance(argument, torch.device) else argument


def tensors(result: Any) -> list[torch.Tensor]:
    """The tensors of a result."""
    return [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor)]


def differentiable(sample: SampleInput) -> list[torch.Tensor]:
    """The sample's float tensors, asked for gradients."""
    leaves = [
        t for t in tensors((sample.input, sample.args, sample.kwargs)) if t.is_floating_point()
    ]
    return [leaf.requires_grad_() for leaf in leaves]


def call(op: OpInfo, sample: SampleInput, backward: bool) -> list[torch.Tensor]:
    """The operator's results, then the gradients of their sum if asked for."""
    leaves = differentiable(sample) if backward else []
    results = tensors(op(sample.input, *sample.args, **sample.kwargs))
    if op.name in TIES:
        results = [r for r in results if r.dtype == sample.input.dtype and r is results[0]]
    if not backward:
        return results
    total = [r.sum() for r in results if r.requires_grad]
    grads = torch.autograd.grad(sum(total), leaves, allow_unused=True) if total else ()
    return [r.detach() for r in results] + [g for g in grads if g is not None]


def record(op: OpInfo, dtype: torch.dtype, limit: int, *, backward: bool) -> Iterator[Case]:
    """Cases of an operator, computed on the CPU and recorded on the device."""
    name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
    for i, sample in enumerate(samples(op, dtype, limit)):
        label = f"{name} {str(dtype).removeprefix('torch.')} sample {i}"
        moved = sample.transform(to_device)
        plain = sample.transform(lambda a: a.detach() if isinstance(a, torch.Tensor) else a)
        try:
            case = Case(label, tree_map(torch.clone, call(op, plain, backward)))
        except Exception:
            continue  # the CPU refuses this sample too
        try:
            case.actual = call(op, moved, backward)
        except Exception as error:
            case.error = f"{type(error).__name__}: {error}"
        yield case


def compare(case: Case) -> str | None:
    """What differs, or None."""
    if case.error:
        return case.error
    if len(case.actual) != len(case.expected):
        return f"{len(case.actual)} tensors; {len(case.expected)} are due"
    for actual, expected in zip(case.actual, case.expected, strict=True):
        if actual.dtype != expected.dtype or actual.size() != expected.size():
            return (
                f"got {actual.dtype} {tuple(actual.size())}, "
                f"not {expected.dtype} {tuple(expected.size())}"
            )
        rtol, atol = TOLERANCES.get(expected.dtype, (0.0, 0.0))
        try:
            torch.testing.assert_close(
                actual.cpu(), expected, rtol=rtol, atol=atol, equal_nan=True, check_stride=False
            )
        except AssertionError as error:
            return " ".join(str(error).split())[:300]
        except Exception as error:
            return f"{type(error).__name__}: {error} {getattr(error, '__notes__', '')}"[:600]
    return None


def check(
    ops: Iterable[OpInfo], dtypes: Iterable[torch.dtype], limit: int, *, backward: bool = False
) -> dict[str, str]:
    """Run samples of many operators in one executable; what failed, by label."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = [
            case
            for op, dtype in itertools.product(ops, dtypes)
            if not backward or op.supports_autograd
            for case in record(op, dtype, limit, backward=backward)
        ]
    try:
        trcomp.runtime.sync()
    except Exception as error:
        notes = " ".join(getattr(error, "__notes__", ()))
        for case in cases:
            case.error = case.error or f"sync: {type(error).__name__}: {error} {notes}"
        drop_pending()
    return {case.label: problem for case in cases if (problem := compare(case)) is not None}


def drop_pending() -> None:
    """Forget what can't be lowered, so that the next sync is of other things."""
    from trcomp.runtime import ir

    ir.take_pending()


def fallbacks() -> dict[str, int]:
    """How often each operator ran on the CPU so far."""
    return dict(counters.fallbacks)
