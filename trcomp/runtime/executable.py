"""A compiled graph: what starts it, what it was made of, and what memory it needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from trcomp.runtime.ir import Signature


class MemoryNeeds(NamedTuple):
    """Bytes that an executable returns, and that it holds while it runs."""

    returned_bytes: int
    temporary_bytes: int


@dataclass(frozen=True)
class Executable:
    """A compiled graph. `run` starts it and returns its outputs, which may still be computing."""

    run: Callable[..., Sequence[jax.Array]]
    donated: tuple[int, ...]
    kept: tuple[int, ...]
    collective: bool
    signatures: tuple[Signature, ...]
    avals: tuple[Any, ...]
    """Shape and dtype of each input."""
    made: list[Hashable] = field(default_factory=list)
    """The same of each output, once it has run."""

    @property
    def analysis(self) -> MemoryNeeds:
        """What XLA says it needs, in bytes; zeros where it does not say."""
        found = getattr(self.run, "memory_analysis", lambda: None)()
        return MemoryNeeds(
            getattr(found, "output_size_in_bytes", 0), getattr(found, "temp_size_in_bytes", 0)
        )

    @property
    def num_bytes(self) -> int:
        """What it reads, makes and needs in between."""
        read = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in self.avals)
        return read + sum(self.analysis)
