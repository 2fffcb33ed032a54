"""What a sample gave on the CPU and on the device, and whether they agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch.testing._internal.opinfo.core import OpInfo

from tests.runtime.agreement import TOLERANCES
from trcomp.runtime.storage import is_dense

_TOLERANCES = TOLERANCES | {torch.complex128: TOLERANCES[torch.float64]}

_WIDER = {
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}

_UNINITIALIZED = {
    *("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
}
"""Elements are whatever memory held: sizes and dtypes alone are compared."""

_MORE_ROUNDING = 4
"""How much farther than the CPU's a result may be from the exact one: another order of sums."""


class Verdict(NamedTuple):
    """What became of one case.

    Attributes:
        op: The operator's name in op_db, with its variant.
        dtype: As in "float32".
        check: One of `CHECKS`.
        sample: The sample's place among those of the operator.
        problem: What differs; None if it is right.
        strides: What differs in strides from a dense result of the CPU; None if they agree.
        decomposed: aten operators that torch made of others on the way.
        fallbacks: aten operators that torch ran on the CPU on the way.
    """

    op: str
    dtype: str
    check: str
    sample: int
    problem: str | None
    strides: str | None
    decomposed: tuple[str, ...]
    fallbacks: tuple[str, ...]


@dataclass
class Case:
    """One check of one sample: what the CPU gives, what the device will give."""

    op: OpInfo
    dtype: torch.dtype
    check: str
    sample: int
    compute: Callable[[Callable[[Any], Any]], list[torch.Tensor]]
    """Results on what a function makes of each of the sample's leaves."""
    expected: list[torch.Tensor] = field(default_factory=list)
    actual: list[torch.Tensor] = field(default_factory=list)
    problem: str | None = None
    decomposed: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()

    def verdict(self) -> Verdict:
        """Read the device's results and compare."""
        problem, strides = self.problem, None
        if problem is None:
            problem = self._difference()
            strides = None if problem else self._stride_difference()
        return Verdict(
            self.op.full_name,
            str(self.dtype).removeprefix("torch."),
            self.check,
            self.sample,
            problem,
            strides,
            self.decomposed,
            self.fallbacks,
        )

    def _difference(self) -> str | None:
        if len(self.actual) != len(self.expected):
            return f"{len(self.actual)} tensors; {len(self.expected)} are due"
        for i, (actual, expected) in enumerate(zip(self.actual, self.expected, strict=True)):
            if (actual.dtype, actual.size()) != (expected.dtype, expected.size()):
                return (
                    f"got {actual.dtype} {tuple(actual.size())}, "
                    f"not {expected.dtype} {tuple(expected.size())}"
                )
            if self.op.name in _UNINITIALIZED:
                continue
            try:
                host = actual.cpu()
            except Exception as error:
                return described(error)
            difference = unlike(host, expected)
            if difference and not self._is_as_near(i, host) and not self._is_random():
                return difference
        return None

    def _is_random(self) -> bool:
        """Whether the CPU gives something else for another seed, be it for one in a hundred."""
        seed_with = torch.manual_seed
        for seed in range(1, 513):
            seed_with(seed)
            # Samples of random operators seed the generator themselves.
            with mock.patch("torch.manual_seed", lambda _, seed=seed: seed_with(seed)):
                again = self.compute(copied)
            if any(unlike(left, right) for left, right in zip(again, self.expected, strict=True)):
                return True
        return False

    def _is_as_near(self, index: int, host: torch.Tensor) -> bool:
        """Whether a result is about as near as the CPU's to what a wider dtype gives."""
        wider = _WIDER.get(self.dtype)
        if wider is None or not (host.is_floating_point() or host.is_complex()):
            return False
        try:
            exact = self.compute(lambda leaf: widened(leaf, self.dtype, wider))[index]
        except Exception:
            return False
        ours, theirs = ((t.to(exact.dtype) - exact).abs() for t in (host, self.expected[index]))
        known = torch.isfinite(theirs)
        if not known.any():
            return True
        return bool(ours[known].max() <= _MORE_ROUNDING * theirs[known].max())

    def _stride_difference(self) -> str | None:
        for actual, expected in zip(self.actual, self.expected, strict=True):
            size, due = tuple(expected.size()), expected.stride()
            if not expected.numel() or not is_dense(size, due):
                continue
            pairs = zip(size, due, actual.stride(), strict=True)
            if any(extent > 1 and left != right for extent, left, right in pairs):
                return f"got strides {actual.stride()} of size {size}, not {due}"
        return None


def described(error: BaseException) -> str:
    """An error in one line."""
    words = f"{type(error).__name__}: {error}".split()
    return " ".join(words)[:240]


def unlike(actual: torch.Tensor, expected: torch.Tensor) -> str | None:
    """How elements differ beyond what the dtype can hold; None if they do not."""
    if actual.is_sparse or expected.is_sparse:
        actual, expected = actual.to_dense(), expected.to_dense()
    rtol, atol = _TOLERANCES.get(expected.dtype, (0.0, 0.0))
    try:
        torch.testing.assert_close(
            actual, expected, rtol=rtol, atol=atol, equal_nan=True, check_stride=False
        )
    except AssertionError as error:
        return " ".join(str(error).split())[:240]
    return None


def copied(leaf: Any) -> Any:
    """A tensor's copy on the CPU; anything else as it is."""
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)
    return leaf


def widened(leaf: Any, dtype: torch.dtype, wider: torch.dtype) -> Any:
    """A tensor or dtype in a wider dtype if it is of `dtype`."""
    if isinstance(leaf, torch.Tensor):
        made = leaf.detach().to(wider) if leaf.dtype == dtype else leaf.detach().clone()
        return made.requires_grad_(leaf.requires_grad)
    return wider if leaf == dtype else leaf
