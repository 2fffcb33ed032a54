"""Keys for draws: numbers of the random stream, or tensors that repeat what was drawn before.

A traced graph draws once in its forward pass and again where a checkpoint recomputes. There the
keys are kept as tensors, as torch keeps the state of its generators.
"""

from __future__ import annotations

from typing import Any

import torch

from trcomp.runtime import rng
from trcomp.runtime.recording import Lifted, record
from trcomp.runtime.storage import output

Key = Lifted | torch.Tensor
"""An operand of a rule that draws."""


class _Keys:
    kept: list[torch.Tensor] | None = None
    repeated: list[torch.Tensor] | None = None


def next_key() -> Key:
    """The next draw's key."""
    if _Keys.repeated is not None:
        return _Keys.repeated.pop(0)
    number = Lifted(rng.next_key())
    if _Keys.kept is None:
        return number
    _Keys.kept.append(as_tensor(number))
    return _Keys.kept[-1]


def as_tensor(key: Key) -> torch.Tensor:
    """A key that an operator can return, int64, on the device."""
    if isinstance(key, torch.Tensor):
        return key
    return record("trcomp::full", ((), key), [output((), torch.int64)])[0]


def keep(op: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
    """Call an operator that draws; the keys that it took, shape (draws,), and its result."""
    _Keys.kept = []
    try:
        result = op(*args, **kwargs)
        return torch.stack([torch.zeros((), dtype=torch.int64, device="xla"), *_Keys.kept]), result
    finally:
        _Keys.kept = None


def repeat(keys: torch.Tensor, op: Any, *args: Any, **kwargs: Any) -> Any:
    """Call an operator with the keys that `keep` returned."""
    _Keys.repeated = list(keys.unbind())[1:]
    try:
        return op(*args, **kwargs)
    finally:
        _Keys.repeated = None
