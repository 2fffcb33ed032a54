"""Errors on their way out of a backward pass: kept, where torch would end the process.

When a hook or a kernel written in Python raises, torch's C++ unwinds with Python's error set, and
at each autograd node asks the device guard for its type. The guard is Python too; calling Python
with an error set is itself an error, in a destructor, where C++ allows none. So the guard takes the
error away and `torch.autograd`'s entry raises it again.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch.autograd import graph

_TYPE = torch._C._autograd.DeviceType.PrivateUse1
# A call whose result the interpreter checks: with an error set it raises SystemError, whose cause
# is that error, and which can be caught. It costs 30 ns; most built-in functions are not checked.
_check = ().__len__


class _Caught:
    error: BaseException | None = None


class DeviceGuard(torch._C._acc.DeviceGuard):
    """What torch asks for the device's type, also while an error unwinds."""

    def type_(self) -> Any:
        """The device type."""
        try:
            _check()
        except SystemError as error:
            _Caught.error = error.__cause__
        return _TYPE


def register() -> None:
    """Raise again what the guard took away."""
    run = graph._engine_run_backward

    @wraps(run)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        _Caught.error = None
        try:
            return run(*args, **kwargs)
        except SystemError:
            if _Caught.error is None:
                raise
        # Out of the handler, so that the error keeps its own cause and context.
        error, _Caught.error = _Caught.error, None
        assert error is not None
        raise error

    graph._engine_run_backward = run_backward
    torch.autograd._engine_run_backward = run_backward  # type: ignore[attr-defined]
