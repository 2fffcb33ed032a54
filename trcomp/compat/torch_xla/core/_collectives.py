"""`xm`'s collectives: recorded into the step's graph, over all ranks or over groups of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

import trcomp.runtime as rt
from trcomp import flags
from trcomp.errors import UnsupportedError
from trcomp.runtime.buckets import gradients_of

from ._traced import untraced

if TYPE_CHECKING or flags.ENABLED.get():
    from trcomp.runtime import data_parallel as over_ranks
else:
    from . import _plain_collectives as over_ranks

Groups = Sequence[Sequence[int]] | None

REDUCE_SUM = "sum"
REDUCE_MUL = "mul"
REDUCE_AND = "and"
REDUCE_OR = "or"
REDUCE_MIN = "min"
REDUCE_MAX = "max"


@untraced
def all_reduce(
    reduce_type: str,
    inputs: torch.Tensor | Sequence[torch.Tensor],
    scale: float = 1.0,
    groups: Groups = None,
    pin_layout: bool = True,
) -> torch.Tensor | None:
    """Reduce over the ranks: one tensor gives a new one, a list is changed in place."""
    return over_ranks.all_reduce(reduce_type, inputs, scale, groups)


_fetch_gradients = gradients_of


@untraced
def reduce_gradients(
    optimizer: torch.optim.Optimizer, groups: Groups = None, pin_layout: bool = True
) -> None:
    """Average the gradients of the optimizer's parameters over the ranks, in place."""
    over_ranks.reduce_gradients(optimizer, groups)


@untraced
def all_reduce_bucketized_gradients(
    gradients: Sequence[torch.Tensor],
    scale: float,
    groups: Groups,
    pin_layout: bool,
    bucket_cap_mb: int = 0,
) -> None:
    """Sum gradients over the ranks, times `scale`, in place; the graph has buckets of its own."""
    all_reduce(REDUCE_SUM, list(gradients), scale, groups)


@untraced
def all_gather(
    value: Any,
    dim: int = 0,
    groups: Groups = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: Any = None,
    use_global_device_ids: Any = None,
) -> Any:
    """All ranks' tensors, concatenated along `dim` in the order of ranks; a list gives a list.

    Args:
        value: A tensor of the same size on every rank, or a list of such.
        dim: The dimension.
        groups: None, or the ranks of each group; each gathers from its own.
        output: A tensor, or a list of them, that takes the result and is returned.
        pin_layout: As for the next two, accepted: there is nothing of the kind to set.
        channel_id: Accepted.
        use_global_device_ids: Accepted.
    """

    def gather(tensor: torch.Tensor) -> torch.Tensor:
        return over_ranks.all_gather(tensor, dim, groups)

    return _each(gather, value, output)


@untraced
def reduce_scatter(
    reduce_type: str,
    input: Any,  # torch_xla's name
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: Any = None,
    use_global_device_ids: Any = None,
) -> Any:
    """Reduce over the ranks, times `scale`; each rank gets its share along `scatter_dim`.

    Args:
        reduce_type: sum, mul, min, max, and, or.
        input: A tensor of the same size on every rank, or a list of such.
        scale: Factor for the result.
        scatter_dim: The dimension that is shared out.
        shard_count: The number of ranks of a group.
        groups: None, or the ranks of each group.
        output: A tensor, or a list of them, that takes the result and is returned.
        pin_layout: As for the next two, accepted: there is nothing of the kind to set.
        channel_id: Accepted.
        use_global_device_ids: Accepted.
    """

    def scatter(tensor: torch.Tensor) -> torch.Tensor:
        return over_ranks.reduce_scatter(reduce_type, tensor, scale, scatter_dim, groups)

    return _each(scatter, input, output)


@untraced
def all_to_all(
    value: torch.Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Groups = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Split along one dimension, send part i to rank i, join what comes along another."""
    return over_ranks.all_to_all(value, split_dimension, concat_dimension, groups)


@untraced
def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """What the rank that is paired with this one sends; zeros where there is none.

    Args:
        value: A tensor of the same size on every rank.
        pairs: (source, target) ranks; each is at most once a source and once a target.
    """
    return over_ranks.collective_permute(value, pairs)


@untraced
def collective_broadcast(
    tensors: Sequence[torch.Tensor],
    root_ordinal: int = 0,
    groups: Sequence[int] | None = None,
    pin_layout: bool = True,
) -> None:
    """Give every rank the values of rank `root_ordinal`, in place."""
    rt.broadcast(list(tensors), root_ordinal)


@untraced
def broadcast_master_param(model: torch.nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    rt.broadcast([t.detach() for t in (*model.parameters(), *model.buffers())])
    rt.sync()


def send(value: torch.Tensor, channel_id: int) -> NoReturn:
    """Refused: see `collective_permute`."""
    _refuse_one_sided("send")


def recv(output: torch.Tensor, channel_id: int) -> NoReturn:
    """Refused: see `collective_permute`."""
    _refuse_one_sided("recv")


def _refuse_one_sided(name: str) -> NoReturn:
    raise UnsupportedError(
        f"xm.{name} on one rank alone: a step's graph holds the same collectives on every rank.",
        "Call xm.collective_permute(value, [(source, target)]) on every rank.",
    )


def _each(
    collective: Callable[[torch.Tensor], torch.Tensor], value: Any, output: Any
) -> torch.Tensor | list[torch.Tensor]:
    """A collective of one tensor applied to it, or to each of a list; results into `output`."""
    if isinstance(value, torch.Tensor):
        result = collective(value)
        return result if output is None else _into(output, result)
    if not isinstance(value, list) or not all(isinstance(v, torch.Tensor) for v in value):
        raise TypeError(f"got {type(value)}; allowed: a tensor or a list of tensors.")
    results = [collective(tensor) for tensor in value]
    if output is None:
        return results
    return [_into(taken, result) for taken, result in zip(output, results, strict=True)]


def _into(output: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """The output, which takes the result and its size."""
    with torch.no_grad():
        return output.resize_(result.size()).copy_(result)
