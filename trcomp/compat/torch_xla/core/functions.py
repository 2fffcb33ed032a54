"""`import torch_xla.core.functions as xf`: collectives that gradients pass, batch norm over ranks.

The gradient of a collective is this rank's own, as torch_xla has it: the optimizer step averages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import trcomp.runtime as rt

from .._missing import missing
from . import xla_model as xm

__getattr__ = missing(__name__)


class AllReduce(torch.autograd.Function):
    """See `all_reduce`."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        reduce_type: str,
        scale: float,
        groups: Sequence[Sequence[int]] | None,
    ) -> Any:
        output = xm.all_reduce(reduce_type, input, scale=scale, groups=groups)
        ctx.reduce_type, ctx.scale = reduce_type, scale
        ctx.save_for_backward(input, output)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        input, output = ctx.saved_tensors
        grad = grad_output * ctx.scale
        if ctx.reduce_type == xm.REDUCE_MUL:
            grad = grad * torch.where(input != 0, output / ctx.scale / input, 0.0)
        elif ctx.reduce_type in (xm.REDUCE_MIN, xm.REDUCE_MAX):
            grad = torch.where(input * ctx.scale == output, grad, 0.0)
        elif ctx.reduce_type != xm.REDUCE_SUM:
            raise RuntimeError(
                f"got the reduction {ctx.reduce_type!r}; sum, mul, min and max have gradients."
            )
        return grad, None, None, None


def all_reduce(
    reduce_type: str,
    value: torch.Tensor,
    scale: float = 1.0,
    groups: Sequence[Sequence[int]] | None = None,
) -> torch.Tensor:
    """`xm.all_reduce` of one tensor, with gradients.

    Args:
        reduce_type: sum, mul, min or max.
        value: The tensor.
        scale: Factor for the result.
        groups: None, or the ranks of each group.
    """
    result: torch.Tensor = AllReduce.apply(value, reduce_type, scale, groups)
    return result


class AllGather(torch.autograd.Function):
    """See `all_gather`."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, dim: int) -> Any:
        ctx.dim, ctx.extent = dim, input.size(dim)
        return xm.all_gather(input, dim=dim)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        return grad_output.narrow(ctx.dim, rt.rank() * ctx.extent, ctx.extent).clone(), None


def all_gather(value: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """`xm.all_gather` with gradients: this rank's part of the result's gradient is its own."""
    result: torch.Tensor = AllGather.apply(value, dim)
    return result


def distributed_mm(w: torch.Tensor, x: torch.Tensor, split: int = 1) -> torch.Tensor:
    """A matrix product whose weight's columns are shared out among the ranks.

    Args:
        w: This rank's columns of the weight, shape (n, k).
        x: This rank's inputs, shape (k * ranks, m).
        split: Parts of m that are computed one after another, to save memory.

    Returns:
        The whole weight times this rank's inputs, shape (n, m).
    """
    columns = w.size(1)
    if x.size(0) != columns * rt.world_size():
        raise ValueError(
            f"got x of {x.size(0)} rows; w has {columns} columns on each of {rt.world_size()} ranks"
        )
    results = []
    for part in x.chunk(split, dim=1):
        rows = all_gather(part, dim=1).narrow(0, rt.rank() * columns, columns)
        product = all_reduce(xm.REDUCE_SUM, w @ rows)
        results.append(product.narrow(1, rt.rank() * part.size(1), part.size(1)))
    return torch.cat(results, dim=1)


class AllReduceSumLayer(torch.autograd.Function):
    """A sum over the ranks whose gradient is the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        return xm.all_reduce(xm.REDUCE_SUM, x)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        return xm.all_reduce(xm.REDUCE_SUM, grad_output)


class SyncBatchNorm(torch.nn.Module):
    """Batch norm over the samples of all ranks, each of which has as many.

    Args:
        num_features: Size of dimension 1 of the batch, which has two to five dimensions.
        eps: Added to the variance.
        momentum: Weight of a batch in the running statistics.
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = torch.nn.Parameter(torch.ones(num_features))
        self.bias = torch.nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The batch, normalised per feature."""
        if not 2 <= batch.dim() <= 5 or batch.shape[1] != self.num_features:
            raise ValueError(
                f"got a batch of shape {list(batch.shape)}; dimension 1 of two to five has "
                f"{self.num_features}"
            )
        mean, variance = self._statistics(batch)
        shape = [1, -1] + [1] * (batch.dim() - 2)
        scale = self.weight / torch.sqrt(variance + self.eps)
        shifted: torch.Tensor = batch * scale.view(shape) + (self.bias - mean * scale).view(shape)
        return shifted

    def _statistics(self, batch: torch.Tensor) -> tuple[Any, Any]:
        if not self.training:
            return self.running_mean, self.running_var
        dims = [d for d in range(batch.dim()) if d != 1]
        local = torch.stack([batch.mean(dims), (batch * batch).mean(dims)])
        mean, square = AllReduceSumLayer.apply(local).div(rt.world_size()).unbind()
        variance = square - mean * mean
        count = batch.numel() // self.num_features * rt.world_size()
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * (count / max(count - 1, 1)), self.momentum)
        return mean, variance

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"
