"""Old spellings of a library's own functions, as torch_xla marks its."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def deprecated(
    module: ModuleType, new: F, old_name: str | None = None, extra_msg: str | None = None
) -> F:
    """A function that warns that its old name is deprecated, and calls the new one."""
    old = f"{module.__name__}.{old_name or new.__name__}"
    return _warning(new, f"{old} is deprecated. Use {new.__module__}.{new.__name__} instead.")


def mark_deprecated(new: F, extra_msg: str | None = None) -> F:
    """A function that warns that it will be removed."""
    note = f" {extra_msg}" if extra_msg else ""
    return _warning(new, f"{new.__name__} will be deprecated in a release to come.{note}")


def register_deprecated(module: ModuleType, new: F) -> None:
    """Put a function into a module under its own name, as a deprecated one."""
    setattr(module, new.__name__, deprecated(module, new))


def _warning(function: F, message: str) -> F:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]
