"""The collectives without XLA (`enabled=False`): made from one gather over all ranks each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

import trcomp.runtime as rt
from trcomp.runtime import reductions

Groups = Sequence[Sequence[int]] | None

_REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mul": lambda rows: rows.prod(0).to(rows.dtype),
    "min": lambda rows: rows.amin(0),
    "max": lambda rows: rows.amax(0),
    "and": lambda rows: _folded(torch.bitwise_and, rows),
    "or": lambda rows: _folded(torch.bitwise_or, rows),
    "xor": lambda rows: _folded(torch.bitwise_xor, rows),
    "sum": lambda rows: rows.sum(0).to(rows.dtype),
}


def all_reduce(
    reduce_type: str, inputs: torch.Tensor | Sequence[torch.Tensor], scale: float, groups: Groups
) -> torch.Tensor | None:
    """As `xm.all_reduce`."""
    if _own(groups) is None:
        return rt.all_reduce(reduce_type, inputs, scale)
    if isinstance(inputs, torch.Tensor):
        return _reduced(reduce_type, inputs, scale, groups)
    with torch.no_grad():
        for tensor in inputs:
            tensor.copy_(_reduced(reduce_type, tensor, scale, groups))
    return None


def reduce_gradients(optimizer: torch.optim.Optimizer, groups: Groups) -> None:
    """As `xm.reduce_gradients`."""
    rt.reduce_gradients(optimizer, groups)


def all_gather(value: torch.Tensor, dim: int, groups: Groups) -> torch.Tensor:
    """As `xm.all_gather`."""
    return torch.cat(_rows(value, groups).unbind(), dim)


def reduce_scatter(
    reduce_type: str, value: torch.Tensor, scale: float, dim: int, groups: Groups
) -> torch.Tensor:
    """As `xm.reduce_scatter`."""
    ranks = _own(groups) or range(rt.world_size())
    reduced = _reduced(reduce_type, value, scale, groups)
    return reduced.chunk(len(ranks), dim)[ranks.index(rt.rank())].clone()


def all_to_all(
    value: torch.Tensor, split_dim: int, concat_dim: int, groups: Groups
) -> torch.Tensor:
    """As `xm.all_to_all`."""
    ranks = _own(groups) or range(rt.world_size())
    mine = ranks.index(rt.rank())
    parts = [row.chunk(len(ranks), split_dim)[mine] for row in _rows(value, groups)]
    return torch.cat(parts, concat_dim)


def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """As `xm.collective_permute`."""
    rows = _rows(value, None)
    sources = [source for source, target in pairs if target == rt.rank()]
    return rows[sources[0]].clone() if sources else torch.zeros_like(value)


def _own(groups: Groups) -> Sequence[int] | None:
    """The ranks of this rank's group, None for all."""
    partition = reductions.partition(groups, rt.world_size())
    return None if partition is None else reductions.own_group(partition, rt.rank())


def _rows(value: torch.Tensor, groups: Groups) -> torch.Tensor:
    """The values of the group's ranks, stacked in front."""
    own = _own(groups)
    rows = rt.all_gather(value.detach().unsqueeze(0))
    return rows if own is None else rows[list(own)]


def _reduced(reduce_type: str, value: torch.Tensor, scale: float, groups: Groups) -> torch.Tensor:
    reductions.check(reduce_type)
    reduced: torch.Tensor = _REDUCTIONS[reduce_type](_rows(value, groups))
    return reduced if scale == 1 else (reduced * scale).to(reduced.dtype)


def _folded(combine: Callable[..., torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    result = rows[0]
    for row in rows[1:]:
        result = combine(result, row)
    return result
