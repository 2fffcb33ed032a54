"""`scan`: a function along the first dimension of tensors, its state carried, recorded unrolled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from .._missing import missing
from .._refused import internal

__getattr__ = missing(__name__)

Builder, Scan, dynamic_slice, dynamic_update_slice, split, tree_flatten_none = (
    internal(f"torch_xla.experimental.scan.{name}")
    for name in (
        *("Builder", "Scan", "dynamic_slice", "dynamic_update_slice"),
        *("split", "tree_flatten_none"),
    )
)
value_and_grad_partitioned = internal("torch_xla.experimental.scan.value_and_grad_partitioned")


def scan(
    fn: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    partition_fn: Any = None,
    is_fn_pure: bool = False,
) -> tuple[Any, Any]:
    """Call `carry, y = fn(carry, x)` for each x along the first dimension.

    The calls are recorded one after another: the graph grows with their number.

    Args:
        fn: Takes and gives nested tensors.
        init: The first carry.
        xs: Nested tensors of one length.
        partition_fn: As the next, accepted: there is nothing of the kind to choose.
        is_fn_pure: Accepted.

    Returns:
        The last carry, and the ys stacked.

    Raises:
        ValueError: `fn` cannot be called, `xs` has no tensors, or they differ in length.
    """
    if not callable(fn):
        raise ValueError(f"got fn={fn!r}; it must be callable.")
    leaves, _ = tree_flatten(xs)
    lengths = {leaf.size(0) for leaf in leaves}
    if len(lengths) != 1:
        raise ValueError(f"got xs of lengths {sorted(lengths)}; all must have the same.")
    carry, rows = init, []
    for index in range(lengths.pop()):
        carry, y = fn(carry, tree_map(lambda x, i=index: x[i], xs))
        rows.append(tree_flatten(y))
    if not rows:
        return carry, xs
    columns = zip(*(row for row, _ in rows), strict=True)
    return carry, tree_unflatten([_stacked(column) for column in columns], rows[0][1])


def _stacked(column: tuple[Any, ...]) -> Any:
    return None if column[0] is None else torch.stack(column)
