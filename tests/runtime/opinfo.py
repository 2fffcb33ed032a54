"""PyTorch's own operator samples, on the device and on the CPU: cases, made and judged.

op_db ──cases──> Case (CPU done, device recorded) ──judge, many per sync──> Verdict
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_map

import trcomp.runtime
from tests.runtime.verdicts import Case, Verdict, copied, described
from trcomp.runtime import fallback, ir
from trcomp.runtime.compiler import FAILED_NODE
from trcomp.runtime.device import DEVICE, NAME
from trcomp.runtime.metrics import counters

CHECKS = ("forward", "in-place", "out", "gradient", "error")

_NODES_PER_SYNC = 400
"""One executable for so many operations: XLA's start-up is shared, its memory stays small."""

_TIES = {"sort", "argsort", "topk", "kthvalue", "median", "nanmedian", "mode"}
"""Which of several equal elements these name is up to the device: values alone are compared."""


def to_device(leaf: Any) -> Any:
    """A tensor's copy on the device, in its own strides; the device for the CPU's name."""
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().to(DEVICE).requires_grad_(leaf.requires_grad)
    if leaf == "cpu" or (isinstance(leaf, torch.device) and leaf.type == "cpu"):
        return DEVICE
    return leaf


def tensors(result: Any) -> list[torch.Tensor]:
    """The tensors of a result."""
    return [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor)]


def results(op: OpInfo, sample: SampleInput, result: Any) -> list[torch.Tensor]:
    """The tensors of a result that two devices must agree on."""
    found = tensors(sample.output_process_fn_grad(result))
    if op.name in _TIES:
        found = [t for i, t in enumerate(found) if i == 0 and t.dtype == sample.input.dtype]
    return [t.detach().resolve_conj().resolve_neg() for t in found]


Mapped = tuple[Any, tuple[Any, ...], dict[str, Any]]


def mapped(sample: SampleInput, change: Callable[[Any], Any]) -> Mapped:
    """Input, arguments and keywords of a sample, each leaf changed."""
    return tree_map(change, (sample.input, sample.args, sample.kwargs))  # type: ignore[no-any-return]


def forward(op: OpInfo, sample: SampleInput, change: Callable[[Any], Any]) -> list[torch.Tensor]:
    """The operator's results."""
    first, args, kwargs = mapped(sample, change)
    return results(op, sample, op(first, *args, **kwargs))


def in_place(op: OpInfo, sample: SampleInput, change: Callable[[Any], Any]) -> list[torch.Tensor]:
    """The input after the in-place form, written without autograd."""
    first, args, kwargs = mapped(sample, change)
    with torch.no_grad():
        returned = op.get_inplace()(first, *args, **kwargs)
    if returned is not first:
        raise AssertionError("the in-place form returned another tensor")
    return results(op, sample, first)


def into_out(op: OpInfo, sample: SampleInput, change: Callable[[Any], Any]) -> list[torch.Tensor]:
    """What `out=` holds afterwards, given tensors of the right size in reversed strides."""
    first, args, kwargs = mapped(sample, change)
    with torch.no_grad():
        made = op(first, *args, **kwargs)
        outs = tree_map(lambda t: torch.empty_like(t.mT if t.dim() > 1 else t), made)
        outs = tree_map(lambda t: t.mT if t.dim() > 1 else t, outs)
        op(first, *args, **kwargs, out=outs)
    return results(op, sample, outs)


def gradient(op: OpInfo, sample: SampleInput, change: Callable[[Any], Any]) -> list[torch.Tensor]:
    """Gradients of what the operator returns, each element weighted differently."""
    first, args, kwargs = mapped(sample, change)
    leaves = [t for t in tensors((first, args, kwargs)) if t.requires_grad]
    made = sample.output_process_fn_grad(op(first, *args, **kwargs))
    outs = [t for t in tensors(made) if t.requires_grad]
    if not outs or not leaves:
        return []
    grads = torch.autograd.grad(outs, leaves, [weights(t) for t in outs], allow_unused=True)
    return [g.detach().resolve_conj().resolve_neg() for g in grads if g is not None]


def weights(result: torch.Tensor) -> torch.Tensor:
    """As many different numbers between 1/2 and 3/2 as a result has elements."""
    steps = torch.arange(result.numel(), dtype=torch.float64).add_(1) / (result.numel() or 1)
    return (steps + 0.5).reshape(result.size()).to(result.dtype).to(result.device)


COMPUTE = {"forward": forward, "in-place": in_place, "out": into_out, "gradient": gradient}


def offers(op: OpInfo, dtype: torch.dtype, check: str) -> bool:
    """Whether an operator has a form that a check is about."""
    if check == "error":
        return op.error_inputs_func is not None and dtype == torch.float32
    if dtype not in op.supported_dtypes("cpu"):
        return False
    if check == "gradient":
        return op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    return {"in-place": op.get_inplace() is not None, "out": op.supports_out}.get(check, True)


def cases(op: OpInfo, dtype: torch.dtype, check: str, limit: int | None) -> Iterator[Case]:
    """Cases of an operator, computed on the CPU and recorded on the device.

    Args:
        op: An entry of op_db.
        dtype: Of the samples.
        check: One of `CHECKS`.
        limit: How many samples, from the first; None for all.
    """
    if not offers(op, dtype, check):
        return
    if check == "error":
        yield from error_cases(op, limit)
        return
    torch.manual_seed(0)
    drawn = op.sample_inputs("cpu", dtype, requires_grad=check == "gradient")
    for i, sample in enumerate(itertools.islice(drawn, limit)):
        if op.is_factory_function:
            sample.kwargs.setdefault("device", "cpu")

        def compute(change: Callable[[Any], Any], sample: SampleInput = sample) -> Any:
            return COMPUTE[check](op, sample, change)

        case = Case(op, dtype, check, i, compute)
        try:
            case.expected = compute(copied)
        except Exception:
            continue  # the CPU refuses this sample too
        if case.expected or check != "gradient":
            record(case)
            yield case


def record(case: Case) -> None:
    """Record a case on the device; note what it was made of."""
    before = counters.fallbacks.copy()
    made_by_torch.clear()
    try:
        case.actual = case.compute(to_device)
        if any(t.device.type != NAME for t in case.actual):
            case.problem = "the result is on the CPU"
    except Exception as error:
        case.problem = described(error)
    case.fallbacks = tuple(sorted(counters.fallbacks - before))
    case.decomposed = tuple(sorted(made_by_torch))


def error_cases(op: OpInfo, limit: int | None) -> Iterator[Case]:
    """Cases whose arguments are wrong: the device must raise what the CPU raises."""
    for i, wrong in enumerate(itertools.islice(op.error_inputs("cpu"), limit)):
        sample = wrong.sample_input

        def compute(change: Callable[[Any], Any], sample: SampleInput = sample) -> Any:
            first, args, kwargs = mapped(sample, change)
            return [t.cpu() for t in tensors(op(first, *args, **kwargs))]

        try:
            compute(copied)
            continue
        except Exception as error:
            due = error
        case = Case(op, torch.float32, "error", i, compute)
        try:
            compute(to_device)
            case.problem = f"no error; due is {described(due)}"
        except type(due):
            pass
        except Exception as error:
            case.problem = f"{described(error)}; due is {described(due)}"
            drop_pending()
        yield case


def judged(drawn: Iterable[Case]) -> Iterator[Verdict]:
    """Verdicts of cases, many of which share an executable."""
    batch: list[Case] = []
    start = counters.recorded_nodes
    for case in drawn:
        batch.append(case)
        if counters.recorded_nodes - start >= _NODES_PER_SYNC:
            yield from settle(batch)
            batch, start = [], counters.recorded_nodes
    yield from settle(batch)


def settle(batch: list[Case]) -> list[Verdict]:
    """Compute what is pending, then judge; what cannot be lowered fails alone."""
    while True:
        try:
            trcomp.runtime.sync()
            break
        except Exception as error:
            if not hasattr(error, FAILED_NODE):
                drop_pending()
                break
    found = []
    for case in batch:
        found.append(case.verdict())
        drop_pending()
    return found


def drop_pending() -> None:
    """Forget what is pending: whoever reads a value has it computed alone."""
    ir.take_pending()


def verdicts(
    ops: Iterable[OpInfo],
    dtypes: Iterable[torch.dtype],
    checks: Iterable[str],
    limit: int | None = None,
) -> Iterator[Verdict]:
    """Verdicts of operators' samples.

    Args:
        ops: Entries of op_db.
        dtypes: Of the samples; those that the CPU lacks are passed over.
        checks: Of `CHECKS`.
        limit: Samples per operator, dtype and check; None for all.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        product = itertools.product(ops, dtypes, checks)
        yield from judged(case for given in product for case in cases(*given, limit))


made_by_torch: set[str] = set()
"""aten operators that torch's decompositions served since `record` last began."""


def _noting(find: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def found(op: Any) -> Any:
        decomposition = find(op)
        if decomposition is not None:
            made_by_torch.add(op._schema.name.removeprefix("aten::"))
        return decomposition

    return found


fallback._decomposition = _noting(fallback._decomposition)
