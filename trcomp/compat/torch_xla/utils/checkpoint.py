"""`torch_xla.utils.checkpoint`: torch's own, whose recomputation the compiler does not undo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import CheckpointFunction, get_device_states, set_device_states
from torch.utils.checkpoint import checkpoint as _checkpoint

from .._missing import missing
from .._refused import internal

__all__ = ["CheckpointFunction", "checkpoint", "get_device_states", "set_device_states"]

__getattr__ = missing(__name__)

CheckpointStatus = internal("torch_xla.utils.checkpoint.CheckpointStatus")


def checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool = True, **kwargs: Any
) -> Any:
    """Keep a function's inputs in place of what it computes, and compute again in backward.

    Args:
        function: A function or module.
        args: Its arguments.
        use_reentrant: Which of torch's two forms; torch_xla has the first alone, here both work.
        kwargs: As for `torch.utils.checkpoint.checkpoint`.
    """
    return _checkpoint(function, *args, use_reentrant=use_reentrant, **kwargs)
