"""An optimizer's counters on the host: numbers of a call, moved on as the step would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from trcomp.runtime.capture.numbers import Number
from trcomp.runtime.capture.state import State
from trcomp.runtime.placeholders import CannotCaptureError


class CounterReads(TorchFunctionMode):
    """Numbers that are read from an optimizer's counters on the host know where they come from."""

    def __init__(self, counters: dict[int, tuple[Number, float]]) -> None:
        self._counters = counters

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        counter = next(filter(None, map(self._counters.get, _ids(args))), None)
        if counter is None:
            return func(*args, **(kwargs or {}))
        if func is torch.Tensor.item:
            number, mark = counter
            moved = func(*args) - mark
            return number + moved if moved else number
        if func.__name__ not in _HARMLESS:
            raise CannotCaptureError(f"{func.__name__} takes an optimizer's counter on the CPU")
        return func(*args, **(kwargs or {}))


_HARMLESS = frozenset(
    [
        "__get__",
        "add_",
        "__iadd__",
        "_foreach_add_",
        "is_floating_point",
        "is_complex",
        "dim",
        "numel",
        "size",
        "stride",
        "element_size",
    ]
)


def _ids(arguments: Any) -> Iterator[int]:
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            yield from map(id, argument)
        else:
            yield id(argument)


def is_counter(path: str, tensor: torch.Tensor) -> bool:
    """Whether a host tensor is a count of steps in an optimizer's state."""
    return ".state[" in path and tensor.numel() == 1 and tensor.dtype in _COUNTER_DTYPES


_COUNTER_DTYPES = (torch.float32, torch.float64)
"""In a narrower one an optimizer's count would soon stand still."""


_BASE: Any = torch._C.TensorBase
_address: Callable[[torch.Tensor], int] = _BASE.data_ptr
_version: Callable[[torch.Tensor], int] = _BASE._version.__get__


class Counters:
    """An optimizer's counters on the host: read, and moved on as the step would.

    There is one for each parameter. They are counted through numpy's views of them: torch's own
    addition costs ten times as much for a single number.
    """

    def __init__(self, state: State, moves: Sequence[float]) -> None:
        self._tensors = [t for path, t in state.host_tensors if is_counter(path, t)]
        self._others = [t for path, t in state.host_tensors if not is_counter(path, t)]
        self._other_versions = [t._version for t in self._others]
        self._moves = list(moves)
        self._moved = [t for t, move in zip(self._tensors, moves, strict=True) if move]
        truths = [tensor.item() for tensor in self._tensors]
        self._classes = [truths.index(truth) for truth in truths]
        self._firsts = sorted(set(self._classes))
        self._versions: list[int] = []
        self._values: list[float] = []
        self._addresses: list[int] = []
        self._memory: list[Any] = []
        """Numpy's view of each."""

    def hold(self) -> bool:
        """Whether those that were equal still are, and other tensors of the host unwritten."""
        if [t._version for t in self._others] != self._other_versions:
            return False
        versions = [*map(_version, self._tensors)]
        addresses = [*map(_address, self._tensors)]
        if addresses != self._addresses or versions != self._versions:
            self._versions, self._addresses = versions, addresses
            self._values = [tensor.item() for tensor in self._tensors]
            self._memory = [tensor.detach().numpy() for tensor in self._tensors]
            pairs = zip(self._values, self._classes, strict=True)
            return all(value == self._values[first] for value, first in pairs)
        return True

    def values(self) -> list[float]:
        """Of each that differs from those before it."""
        return [self._values[i] for i in self._firsts]

    def advance(self) -> None:
        """Count the step."""
        if self._moved:
            for array, value, move in zip(self._memory, self._values, self._moves, strict=True):
                if move:
                    array.fill(value + move)
            torch.autograd.graph.increment_version(self._moved)
            self._values = [array.item() for array in self._memory]
            self._versions = [*map(_version, self._tensors)]
