"""Numbers that may differ from call to call of a captured step, and what the host makes of them.

    lr ──Number──> lr / (1 - beta1 ** count) ──mark──> a kernel's lifted number ──> its source

While a step is captured a learning rate is a `Number`: it stands for what it is in comparisons, and
for a mark that occurs nowhere else wherever a kernel gets it. What Python computes from it is one
too, written down on a tape that each call plays with its own numbers.
"""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from trcomp.runtime.placeholders import CannotCaptureError

Operation = Callable[..., Any]


class Tape:
    """What a step's host code does with its numbers, as operations on registers.

    Attributes:
        sources: How many registers are brought by a call; they come first.
        rows: The registers after those: an operation and its operands, registers or constants.
        pins: Registers that must be what they were: the step saw their value.
        outcomes: Comparisons, each with what came out: the step took a turn there.
    """

    def __init__(self, seed: int) -> None:
        self.sources = 0
        self.rows: list[tuple[Operation, tuple[Any, ...]]] = []
        self.pins: dict[int, float] = {}
        self.outcomes: dict[tuple[Operation, tuple[Any, ...]], bool] = {}
        self.marks: dict[float, int] = {}
        """The register of each mark. Two that have the same are the same computation."""
        self._random = random.Random(seed)
        self._known: dict[tuple[Operation, tuple[Any, ...]], Number] = {}
        self._num_registers = 0

    def source(self, truth: float, mark: float | None = None) -> Number:
        """A number that a call brings; all of them come before anything is computed.

        Args:
            truth: What it is in this call.
            mark: Given for a count of steps, which is another in each call.
        """
        counts = mark is not None
        if mark is None:
            part = self._random.uniform(1e-4, 2e-4)
            mark = truth * (1 - part) if truth else 1e3 * part
        self.sources += 1
        return self._register(truth, mark, counts)

    def count_mark(self) -> float:
        """A mark for counters, which float32 holds exactly, and its sum with small integers too."""
        return self._random.randrange(2 << 10, 5 << 10) / 1024

    def _register(self, truth: float, mark: float, counts: bool) -> Number:
        number = Number(mark)
        number.tape, number.register, number.truth = self, self._num_registers, truth
        number.counts = counts
        if truth != mark and not (2 * mark) % 1:
            raise CannotCaptureError(f"a number that may change is lost in another ({mark})")
        self.marks.setdefault(mark, self._num_registers)
        self._num_registers += 1
        return number

    def apply(self, operation: Operation, operands: tuple[Any, ...]) -> Any:
        """What an operation makes of numbers, some of which may be those of a call."""
        row = (operation, tuple(map(_operand, operands)))
        if row not in self._known:
            truth = operation(*map(_truth, operands))
            mark = operation(*map(_mark, operands))
            if not isinstance(mark, float):
                for operand in operands:
                    _pinned(operand)
                return truth
            self.rows.append(row)
            counts = any(isinstance(o, Number) and o.counts for o in operands)
            self._known[row] = self._register(truth, mark, counts)
        number = self._known[row]
        if number.truth == float.__float__(number):
            self.pins[number.register] = number.truth  # Times zero, say: a constant so far.
            return number.truth
        return number

    def compare(self, operation: Operation, operands: tuple[Any, ...]) -> bool:
        """What a comparison gives; a call in which it gives another is another step."""
        outcome = operation(*map(_truth, operands))
        if outcome is NotImplemented:
            return outcome
        self.outcomes[operation, tuple(map(_operand, operands))] = outcome
        return bool(outcome)

    def pin(self, number: Number) -> float:
        """The number's value, which a call must have too from here on."""
        if number.counts:
            raise CannotCaptureError("the host looks at a count of steps")
        self.pins[number.register] = number.truth
        return number.truth

    def key(self) -> Any:
        """Equal for tapes of the same computation."""
        return self.sources, self.rows, self.pins, self.outcomes

    def play(self, brought: Sequence[float]) -> list[float] | None:
        """All registers in a call; None if the step would go another way with these numbers."""
        registers: list[Any] = list(brought)
        for operation, operands in self.rows:
            registers.append(operation(*_read(registers, operands)))
        for register, value in self.pins.items():
            if registers[register] != value:
                return None
        for (operation, operands), outcome in self.outcomes.items():
            if bool(operation(*_read(registers, operands))) != outcome:
                return None
        return registers


def _read(registers: Sequence[Any], operands: tuple[Any, ...]) -> Iterator[Any]:
    return (registers[o[1]] if type(o) is tuple else o for o in operands)


def _operand(number: Any) -> Any:
    return ("register", number.register) if isinstance(number, Number) else number


def _truth(number: Any) -> Any:
    return number.truth if isinstance(number, Number) else number


def _mark(number: Any) -> Any:
    return float.__float__(number) if isinstance(number, Number) else number


def _pinned(number: Any) -> Any:
    return number.tape.pin(number) if isinstance(number, Number) else number


class Number(float):
    """A float that knows where it comes from.

    Kernels see its mark, Python's comparisons its truth.
    """

    __slots__ = ("counts", "register", "tape", "truth")

    counts: bool
    tape: Tape
    register: int
    truth: float

    def __copy__(self) -> Number:
        return self

    def __deepcopy__(self, memo: Any) -> Number:
        return self


def _computes(operation: Operation, reflected: bool = False) -> Callable[..., Any]:
    def method(self: Number, *others: Any) -> Any:
        if not all(type(other) in (int, float, bool, Number) for other in others):
            return NotImplemented
        operands = (*others, self) if reflected else (self, *others)
        return self.tape.apply(operation, operands)

    return method


def _compares(operation: Operation) -> Callable[..., Any]:
    def method(self: Number, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        return self.tape.compare(operation, (self, other))

    return method


def _reveals(name: str) -> Callable[..., Any]:
    plain = getattr(float, name)

    def method(self: Number, *arguments: Any) -> Any:
        return plain(self.tape.pin(self), *arguments)

    return method


for _name in ("add", "sub", "mul", "truediv", "pow"):
    _operation = getattr(operator, _name)
    setattr(Number, f"__{_name}__", _computes(_operation))
    setattr(Number, f"__r{_name}__", _computes(_operation, reflected=True))
for _name in ("neg", "pos", "abs"):
    setattr(Number, f"__{_name}__", _computes(getattr(operator, _name)))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Number, f"__{_name}__", _compares(getattr(operator, _name)))
for _name in (
    *("__bool__", "__int__", "__float__", "__trunc__", "__floor__", "__ceil__", "__round__"),
    *("__hash__", "__str__", "__repr__", "__format__", "__divmod__", "__rdivmod__", "hex"),
    *("__mod__", "__rmod__", "__floordiv__", "__rfloordiv__"),
    *("is_integer", "as_integer_ratio", "conjugate", "__getnewargs__"),
):
    setattr(Number, _name, _reveals(_name))


@contextmanager
def through_math() -> Iterator[None]:
    """Let `math`'s functions take such numbers meanwhile."""
    with ExitStack() as patches:
        for name in ("sqrt", "exp", "log", "log2", "log10", "pow", "cos", "sin", "tanh", "fabs"):
            patches.enter_context(patch.object(math, name, _through(getattr(math, name))))
        for name in ("isclose", "isnan", "isinf", "isfinite", "floor", "ceil", "trunc", "copysign"):
            patches.enter_context(patch.object(math, name, _revealing(getattr(math, name))))
        yield


def _through(function: Operation) -> Operation:
    def call(*arguments: Any) -> Any:
        for argument in arguments:
            if isinstance(argument, Number):
                return argument.tape.apply(function, arguments)
        return function(*arguments)

    return call


def _revealing(function: Operation) -> Operation:
    def call(*arguments: Any, **keywords: Any) -> Any:
        return function(*map(_pinned, arguments), **keywords)

    return call
