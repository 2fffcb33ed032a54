"""Marks old names of a library's own functions, as torch_xla marks its: told once, in the log."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def deprecated(
    module: ModuleType, new: F, old_name: str | None = None, extra_msg: str | None = None
) -> F:
    """A function for an old name, which says so at its first call, and calls the new one.

    Args:
        module: Where the old name is.
        new: The function that replaces it.
        old_name: The old name; None is the new one's.
        extra_msg: Said too.
    """
    old = f"{module.__name__}.{old_name or new.__name__}"
    message = f"{old} is deprecated. Use {new.__module__}.{new.__name__} instead."
    tell = functools.cache(lambda: logging.warning(" ".join(filter(None, [message, extra_msg]))))

    @functools.wraps(new)
    def call(*args: Any, **kwargs: Any) -> Any:
        tell()
        return new(*args, **kwargs)

    return call  # type: ignore[return-value]


def mark_deprecated(new: F, extra_msg: str | None = None) -> Callable[[Callable[..., Any]], F]:
    """A decorator of an old function, which then calls the new one."""

    def mark(function: Callable[..., Any]) -> F:
        return deprecated(sys.modules[function.__module__], new, function.__name__, extra_msg)

    return mark


def register_deprecated(module: ModuleType, new: F) -> None:
    """Put a function into a module under its own name, as a deprecated one."""
    setattr(module, new.__name__, deprecated(module, new))
