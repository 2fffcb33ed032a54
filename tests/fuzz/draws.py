"""Draws what a target is fed with: good values, damaged somewhere, out of any engine's numbers."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_TEXTS = (
    *("", " ", "0", "-1", "1", "true", "null", "[]", "{}", "nan", "..", "/", "a/b", "--", "-h"),
    *("algo-1", "train.py", "s3://bucket/x", "s3://", "file:///x", "process://x", "a=b", "=", "%s"),
    *("\0", "\n", "\x1b[31m", "\ud800", "\udcff", "ü", "🙂", "<b>", "'", '"', "\\", "{0}", "$HOME"),
    *("sagemaker_program", "ml.p4d.24xlarge", "9" * 30, "1e400", "x" * 300, "2026-13-01T00:00:00Z"),
)
_NUMBERS = (0, 1, -1, 2, 7, 600, 2**31, 2**63, -(2**63), 10**40, 0.5, -0.0, 1e308, 5e-324)
_ODD_NUMBERS = (float("nan"), float("inf"), -float("inf"))
_BYTES = (
    b"",
    b"\0",
    b"\xff",
    b"\xed\xa0\x80",
    b'"',
    b"{",
    b"}",
    b"[" * 60,
    b",",
    b"\\u",
    b"9" * 40,
)


class Draw:
    """Draws values out of whole numbers.

    Args:
        below: Gives a whole number from 0 on below its argument: a random generator, hypothesis, or
            the bytes of a coverage-guided fuzzer.
    """

    def __init__(self, below: Callable[[int], int]) -> None:
        self.below = below

    def one_in(self, count: int) -> bool:
        """True once in so many times; 0, which shrinking prefers, is False."""
        return self.below(count) == count - 1

    def pick(self, options: Sequence[T]) -> T:
        """One of these."""
        return options[self.below(len(options))]

    def text(self) -> str:
        """Text that something may stumble over."""
        if self.one_in(4):
            return "".join(chr(self.below(0x110000)) for _ in range(self.below(6)))
        return self.pick(_TEXTS)

    def value(self, depth: int = 2) -> Any:
        """A JSON value, Python's NaN and infinities among them."""
        kind = self.below(9 if depth else 7)
        if kind < 2:
            return self.text()
        if kind < 6:
            odd = (None, True, False, *_ODD_NUMBERS)
            return self.pick(odd if kind == 5 else _NUMBERS)
        if kind == 6:
            return [] if self.one_in(2) else {}
        if kind == 7:
            return [self.value(depth - 1) for _ in range(self.below(4))]
        return {self.text(): self.value(depth - 1) for _ in range(self.below(4))}

    def damaged(self, good: Any, most: int = 3) -> Any:
        """A copy of a JSON value that is changed in a few places, or in none."""
        value = copy.deepcopy(good)
        for _ in range(self.below(most + 1)):
            value = self._changed(value)
        return value

    def _changed(self, value: Any) -> Any:
        if not isinstance(value, dict | list) or not value or self.one_in(6):
            return self.value()
        key = self.pick(list(value)) if isinstance(value, dict) else self.below(len(value))
        how = self.below(8)
        if how == 7:
            del value[key]
        elif how == 6 and isinstance(value, dict):
            value[self.text()] = value[key]
        elif how == 6:
            value.append(value[key])
        else:
            value[key] = self._changed(value[key])
        return value

    def damaged_bytes(self, good: bytes) -> bytes:
        """Bytes of which some are cut off, replaced or added."""
        data = bytearray(good)
        for _ in range(self.below(3)):
            at = self.below(len(data) + 1)
            end = at + self.below(9)
            data[at:end] = self.pick(_BYTES) if self.one_in(2) else bytes([self.below(256)])
        return bytes(data[: self.below(len(data) + 1)] if self.one_in(8) else data)

    def damaged_json(self, good: Any) -> bytes:
        """The text of a value, of which either has been damaged."""
        text = json.dumps(self.damaged(good)).encode()
        return self.damaged_bytes(text) if self.one_in(4) else text

    def damaged_environ(self, good: dict[str, str]) -> dict[str, str]:
        """Variables as a process can have them: text without NUL, bytes that are no UTF-8 too."""
        found = self.damaged(good)
        pairs = found.items() if isinstance(found, dict) else good.items()
        return {_variable(name).replace("=", "_"): _variable(value) for name, value in pairs}


def _variable(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    text = text.replace("\0", "")
    # The system's own encoding holds no other surrogates than those of bytes that are no UTF-8.
    return text.encode("utf-8", "replace").decode() if _has_lone_surrogate(text) else text


def _has_lone_surrogate(text: str) -> bool:
    return any(
        "\ud800" <= letter <= "\udfff" and not "\udc80" <= letter <= "\udcff" for letter in text
    )


def place(path: Path, data: bytes | None) -> None:
    """Have a file hold these bytes; None: have no such file."""
    if data is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(data)
