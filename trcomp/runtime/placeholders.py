"""Placeholders: tensors and numbers that stand for those that a region's calls will bring."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from trcomp.runtime import storage
from trcomp.runtime.bodies import ARGUMENT
from trcomp.runtime.ir import Node, Output, Signature, Value
from trcomp.runtime.recording import is_device_tensor

_make_tensor = torch._C._acc.create_empty_tensor


class CannotCaptureError(Exception):
    """What a function does cannot be part of a region: it needs values, or other ranks."""


@lru_cache(maxsize=1 << 14)
def signature_of(position: int, out: Output) -> Signature:
    """Of the node that stands for what a call brings: its place among the storages."""
    return Signature(ARGUMENT, (position,), {}, (), (out,))


class Placeholders:
    """Stand-ins for a call's arguments: tensors over storages that have no value."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        self.chosen: list[int] = []
        self.stand_ins: list[torch.Tensor] = []
        """One per storage."""
        self.storages: list[Any] = []
        self.values: list[Value] = []
        """What each storage holds until it is written."""
        self._known: dict[int, int] = {}
        self._num_tensors = 0
        self.arguments = [self._stand_in(argument) for argument in arguments]

    def position(self, held: Any) -> int | None:
        """Which argument's storage this is, if it is one."""
        return self._known.get(held._cdata)

    def _stand_in(self, argument: Any) -> Any:
        if not is_device_tensor(argument):
            return argument
        real = argument.untyped_storage()
        position = self._known.get(real._cdata)
        if position is None:
            position = self._known[real._cdata] = len(self.storages)
            self.chosen.append(self._num_tensors)
            self._add(argument, real.nbytes())
        self._num_tensors += 1
        view = storage.view_of(argument)
        stand_in = _make_tensor(view.size, view.dtype)
        storage.relayout(stand_in, self.storages[position], view)
        if position == len(self.stand_ins):
            self.stand_ins.append(stand_in)
        return stand_in

    def _value(self, argument: torch.Tensor, num_bytes: int) -> Value:
        """What stands for the storage of an argument."""
        size, stride = tuple(argument.size()), argument.stride()
        if storage.is_whole(argument):
            out = storage.output(size, argument.dtype, stride)
        else:
            out = storage.output((num_bytes // argument.element_size(),), argument.dtype)
        return Value(Node(signature_of(len(self.storages), out), (), ()), 0)

    def _add(self, argument: torch.Tensor, num_bytes: int) -> None:
        value = self._value(argument, num_bytes)
        held = storage.over(value, num_bytes)
        self._known[held._cdata] = len(self.storages)
        self.storages.append(held)
        self.values.append(value)


class InPlace(Placeholders):
    """The arguments themselves, while their storages hold placeholders."""

    def _stand_in(self, argument: torch.Tensor) -> torch.Tensor:
        held = argument.untyped_storage()
        if held._cdata not in self._known:
            self._known[held._cdata] = len(self.storages)
            self.chosen.append(self._num_tensors)
            self.stand_ins.append(argument)
            self.values.append(self._value(argument, held.nbytes()))
            self.storages.append(held)
            storage.put(held, self.values[-1])
        self._num_tensors += 1
        return argument


class Marks:
    """Numbers that a call may change, each replaced by one that occurs nowhere else.

    Where such a number turns up among a graph's lifted numbers is where a call's own goes.
    """

    def __init__(self, seed: int) -> None:
        self.sources: dict[float | int, tuple[int, ...]] = {}
        self._random = random.Random(seed)

    def replace(self, position: int, argument: Any) -> Any:
        """What to call the function with in place of an argument."""
        if type(argument) is float:
            return self._mark(torch.float64, position, 0)
        if not isinstance(argument, torch.Tensor) or argument.device.type != "cpu":
            return argument
        flat = [self._mark(argument.dtype, position, i) for i in range(argument.numel())]
        return torch.tensor(flat, dtype=argument.dtype).reshape(argument.shape)

    def _mark(self, dtype: torch.dtype, position: int, element: int) -> float | int:
        while True:
            if dtype.is_floating_point:
                number = torch.tensor(self._random.uniform(1, 2), dtype=dtype).item()
            elif dtype in (torch.int32, torch.int64):
                number = self._random.randrange(1 << 20, 1 << 31)
            else:
                raise CannotCaptureError(f"a host tensor of {dtype} takes part")
            if number not in self.sources:
                self.sources[number] = (1, position, element)
                return number
