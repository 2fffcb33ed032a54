"""Collectives over lists of tensors, handed over in buckets of a given size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ._collectives import Groups, all_gather, reduce_scatter

Tensors = list[torch.Tensor]
Collective = Callable[[Tensors, Tensors | None], Tensors]


class CoalescingBuckets:
    """Calls a collective bucket by bucket; the results in the order of the input.

    Args:
        func: The collective: a list of tensors, and of outputs or None, to a list of results.
        input_list: The tensors.
        output_list: Tensors that take the results, or None.
        bucket_cap_mb: Size of a bucket in MiB; a larger tensor is one of its own.

    Raises:
        TypeError: A list is none, or holds something else than tensors.
        ValueError: The lists differ in length.
    """

    def __init__(
        self,
        func: Collective,
        input_list: Any,
        output_list: Any = None,
        bucket_cap_mb: int = 160,
    ) -> None:
        for name, tensors in (("input_list", input_list), ("output_list", output_list)):
            wanted = name == "input_list" or tensors is not None
            if wanted and not _is_tensor_list(tensors):
                raise TypeError(f"got {name} of {type(tensors)}; allowed: a list of tensors.")
        if output_list is not None and len(output_list) != len(input_list):
            raise ValueError(
                f"got output_list of length {len(output_list)}; input_list has {len(input_list)}."
            )
        self._func = func
        self._inputs: Tensors = input_list
        self._outputs: Tensors | None = output_list
        self._cap_bytes = bucket_cap_mb * 2**20

    def __call__(self) -> Tensors:
        results: Tensors = []
        for start, end in self._bounds():
            outputs = None if self._outputs is None else self._outputs[start:end]
            results += self._func(self._inputs[start:end], outputs)
        return results

    def _bounds(self) -> Iterator[tuple[int, int]]:
        start, held_bytes = 0, 0
        for i, tensor in enumerate(self._inputs):
            if i > start and held_bytes + tensor.nbytes > self._cap_bytes:
                yield start, i
                start, held_bytes = i, 0
            held_bytes += tensor.nbytes
        if start < len(self._inputs):
            yield start, len(self._inputs)


def _is_tensor_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, torch.Tensor) for item in value)


def all_gather_bucketized(
    input_list: Tensors,
    dim: int = 0,
    groups: Groups = None,
    output: Tensors | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> Tensors:
    """`all_gather` of each tensor, in buckets."""

    def gather(tensors: Tensors, outputs: Tensors | None) -> Any:
        return all_gather(tensors, dim, groups, outputs)

    return CoalescingBuckets(gather, input_list, output, bucket_cap_mb)()


def reduce_scatter_bucketized(
    reduce_type: str,
    input_list: Tensors,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: Tensors | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> Tensors:
    """`reduce_scatter` of each tensor, in buckets."""

    def scatter(tensors: Tensors, outputs: Tensors | None) -> Any:
        return reduce_scatter(
            reduce_type, tensors, scale, scatter_dim, shard_count, groups, outputs
        )

    return CoalescingBuckets(scatter, input_list, output, bucket_cap_mb)()
