"""What `torch.compile` is told of calls that it does not trace: why, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_WHY = (
    "a collective of torch_xla is recorded beside traced code, into the same step. Next: leave out "
    "fullgraph=True, or call torch.distributed's collective, which is traced"
)


def untraced(function: Function) -> Function:
    """Mark a collective, as `torch.compiler.disable` would, which imports all of dynamo."""
    marked: Any = function
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = _WHY
    return function
