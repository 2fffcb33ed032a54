"""JAX's warning at a fork, silenced: a forked child that touches the device gets a clear error."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

_MESSAGE = r"os\.fork\(\) was called\..*JAX is multithreaded"


def silence_warning() -> None:
    """Do not warn when this process forks, as a data loader does for its workers."""
    warnings.filterwarnings("ignore", _MESSAGE, RuntimeWarning)


@contextlib.contextmanager
def quiet_fork() -> Iterator[None]:
    """Do not warn in this block, whatever filters were set since the runtime started."""
    with warnings.catch_warnings():
        silence_warning()
        yield
