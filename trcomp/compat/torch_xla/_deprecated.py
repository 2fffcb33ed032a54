"""Old spellings: they work, and say once what replaces them."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import trcomp.runtime as rt

F = TypeVar("F", bound=Callable[..., Any])

_said: set[tuple[str, str]] = set()


def replaced_by(new: str) -> Callable[[F], F]:
    """Mark a function as an old spelling of `new`; its callers are told once each."""

    def mark(function: F) -> F:
        module = function.__module__.partition("torch_xla")[2]
        old = f"torch_xla{module}.{function.__name__}"

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            say(old, new)
            return function(*args, **kwargs)

        call.__replaced_by__ = new  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return mark


def say(old: str, new: str) -> None:
    """Warn whoever called the caller, once per module and on rank 0 alone.

    Python shows a DeprecationWarning to the script itself and not to the libraries it uses.
    """
    caller = sys._getframe(2).f_globals.get("__name__", "")
    if (old, caller) in _said or rt.rank():
        return
    _said.add((old, caller))
    warnings.warn(f"{old} is deprecated: use {new}.", DeprecationWarning, stacklevel=3)
