"""Eager mode: each operator is computed at once, except in `torch_xla.compile`'s regions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from trcomp import flags

EAGER = "eager_"
"""What the measurements of operators that are computed at once begin with."""


class _AtOnce(TorchDispatchMode):
    """Computes all that is pending after each operator."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        from trcomp.runtime.samples import prefixed
        from trcomp.runtime.sync import evaluate

        with prefixed(EAGER):
            made = func(*args, **(kwargs or {}))
            evaluate()
        return made


_active: list[_AtOnce] = []


def eager_mode(enable: bool) -> None:
    """Compute each operator at once from here on, or record again."""
    if enable and not _active and flags.ENABLED.get():
        mode = _AtOnce()
        mode.__enter__()
        _active.append(mode)
    elif not enable and _active:
        _active.pop().__exit__(None, None, None)


def is_eager_mode() -> bool:
    """Whether each operator is computed at once."""
    return bool(_active)


@contextmanager
def eager_mode_context(enable: bool) -> Iterator[bool]:
    """Either mode for a block; gives the mode before it."""
    before = is_eager_mode()
    eager_mode(enable)
    try:
        yield before
    finally:
        eager_mode(before)
