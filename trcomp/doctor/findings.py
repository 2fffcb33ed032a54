"""What a check of the machine is, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Asked:
    """What the reader wants of the machine.

    Attributes:
        gpu: It is to train on GPUs: what they lack is a problem.
        online: AWS may be called.
    """

    gpu: bool = False
    online: bool = False


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        verdict: "ok"; "warning": it works, but not all of it or not well; "problem": jobs fail.
        found: What there is, a phrase or a sentence.
        fix: What to do about it, empty if nothing is to be done.
        name: The check's.
    """

    verdict: Verdict
    found: str
    fix: str = ""
    name: str = ""


@dataclass(frozen=True)
class Check:
    """One check of the machine.

    Attributes:
        name: What is checked.
        read: Reads the facts from this machine. Several checks may share it: it is called once.
        judge: Makes the finding of the facts: a pure function.
        looks_at: What is looked at, for the docs.
        complains: When there is a warning or a problem, for the docs.
    """

    name: str
    read: Callable[[Asked], Any]
    judge: Callable[[Any, Asked], Finding]
    looks_at: str
    complains: str


def ok(found: str) -> Finding:
    """All is well."""
    return Finding("ok", found)


def warning(found: str, fix: str) -> Finding:
    """It works, but not all of it or not well."""
    return Finding("warning", found, fix)


def problem(found: str, fix: str) -> Finding:
    """Jobs fail over it."""
    return Finding("problem", found, fix)


def size_text(num_bytes: int) -> str:
    """A size for readers: 64.0 MiB."""
    size, units = float(num_bytes), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} bytes" if units[0] == "bytes" else f"{size:.1f} {units[0]}"
