"""Out of device memory, in words: what the graph holds, makes and needs in between."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import jax
import numpy as np

from trcomp.errors import DeviceMemoryError
from trcomp.runtime import client

if TYPE_CHECKING:
    from trcomp.runtime.executable import Executable

_MARK = "RESOURCE_EXHAUSTED"
_NUM_LISTED = 5


def in_units(num_bytes: float) -> str:
    """A size for people: 1536 -> "1.5 KB"."""
    for unit in ("B", "KB", "MB", "GB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TB"


@contextlib.contextmanager
def explained(executable: Executable) -> Iterator[None]:
    """Say what filled the memory, where XLA says only that it is full.

    Raises:
        DeviceMemoryError: The device ran out of memory inside.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if _MARK not in str(error):
            raise
        raise DeviceMemoryError(
            _describe(executable, str(error)),
            "Use a smaller batch, gradient accumulation, bfloat16 autocast or activation "
            "checkpointing; drop tensors kept from earlier steps.",
        ) from error


def _describe(executable: Executable, reason: str) -> str:
    inputs = sorted(
        ((int(np.prod(shape)) * np.dtype(dtype).itemsize, f"{dtype}{list(shape)}"))
        for shape, dtype in executable.avals
    )
    made = sorted(
        (out.num_bytes, f"{signature.rule.name} {str(out.dtype)[6:]}{list(out.size)}")
        for signature in executable.signatures
        for out in signature.outputs
        if out is not None
    )
    needs = executable.analysis
    read = in_units(sum(size for size, _ in inputs))
    lines = [
        f"{client.device()} is out of memory: {reason.partition(': ')[2] or reason}",
        f"  The graph has {len(executable.signatures)} operations; it reads {read}, returns "
        f"{in_units(needs.returned_bytes)} and needs {in_units(needs.temporary_bytes)} in between.",
        f"  Largest inputs: {_listed(inputs)}.",
        f"  Largest results: {_listed(made)}.",
    ]
    return "\n".join(lines)


def _listed(items: list[tuple[int, str]]) -> str:
    largest = items[: -_NUM_LISTED - 1 : -1]
    return ", ".join(f"{what} ({in_units(size)})" for size, what in largest) or "none"
