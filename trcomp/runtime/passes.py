"""Passes over data: a rank whose loader has more batches than another's is told."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
from jax._src.distributed import global_state

from trcomp.errors import UnevenDataError
from trcomp.runtime import source_lines
from trcomp.runtime.agreement import ledger
from trcomp.runtime.distributed import rank, world_size

_visits: Counter[str] = Counter()


class Pass:
    """One pass over a loader, from its beginning."""

    def __init__(self) -> None:
        self._line = source_lines.here()
        _visits[self._line] += 1
        self._place = f"trcomp/passes/{self._line}/{_visits[self._line]}"
        self._before = sum(ledger.counts.values())

    def end(self, batches: int) -> None:
        """The loader has no more; comes after the last step.

        A rank that had a batch more has met the others' next pass with it, and ever after: the
        ranks would average over different steps until one of them is done. Passes without
        collectives, or as many of them, disturb nobody.

        Args:
            batches: How many there were.

        Raises:
            UnevenDataError: Another rank's pass, of the same line, had another number.
        """
        store, collectives = global_state.client, sum(ledger.counts.values()) - self._before
        if store is None or not collectives or not self._line:
            return
        store.key_value_set(f"{self._place}/{rank()}", f"{batches} {collectives}", True)
        for peer in range(1, world_size()) if rank() == 0 else (0,):
            theirs = _left(store, f"{self._place}/{peer}")
            if theirs is not None and theirs[0] != batches and theirs[1] != collectives:
                raise UnevenDataError(
                    f"Rank {rank()} had {batches} batches in this pass of the loop at "
                    f"{self._line}, rank {peer} had {theirs[0]}: their steps no longer belong "
                    "together.",
                    "Give each rank as many batches: DistributedSampler(drop_last=True), or "
                    'DeviceLoader(loader, uneven="shortest").',
                )


def _left(store: Any, key: str) -> list[int] | None:
    try:
        return [int(word) for word in store.key_value_try_get(key).split()]
    except jax.errors.JaxRuntimeError:
        return None
