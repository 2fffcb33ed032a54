"""What DistributedDataParallel is made of, where torch's own would cut the step's graph."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.nn.modules import _functions, batchnorm

from trcomp.runtime.ir import pending_since, tick
from trcomp.runtime.ops.memory import counts_on_host
from trcomp.runtime.recording import is_device_tensor
from trcomp.runtime.sync import compute_alone

_verify_parameters = c10d._verify_params_across_processes


class Reducer(c10d.Reducer):
    """torch's reducer of gradients; what it counts for itself stays on the host."""

    def __init__(self, params: Any, *args: Any, **kwargs: Any) -> None:
        self.on_device = any(is_device_tensor(param) for param in params)
        with counts_on_host():
            super().__init__(params, *args, **kwargs)

    def _set_static_graph(self) -> None:
        with counts_on_host():
            super()._set_static_graph()

    def _rebuild_buckets(self) -> bool:
        """Have new buckets computed at once: the step that fills them is then like all later ones.

        Else the second step would make its buckets in its own graph, and the third compile again.
        """
        before = tick()
        with counts_on_host():
            rebuilt: bool = super()._rebuild_buckets()
        if rebuilt:
            compute_alone(pending_since(before))
        return rebuilt


class Logger(c10d.Logger):
    """torch's record of how DDP is used."""

    def __init__(self, reducer: Reducer) -> None:
        super().__init__(reducer)
        self._times = not reducer.on_device

    def set_runtime_stats_and_log(self) -> None:
        """Nothing on the device: it has no times of its own while it is recorded.

        torch would say on each rank that it measures other devices only.
        """
        if self._times:
            super().set_runtime_stats_and_log()


def verify_parameters(*args: Any) -> Any:
    """torch's comparison of the ranks' parameter sizes, on the host."""
    with counts_on_host():
        return _verify_parameters(*args)


class SyncBatchNorm(torch.autograd.Function):
    """Batch normalization over the ranks' batches together. (batch, channels, ...)

    torch's own drops the ranks whose batch is empty, which takes a look at the numbers: the graph
    would be cut at each layer. Here they count for nothing.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        eps: float,
        momentum: float,
        process_group: dist.ProcessGroup,
        world_size: int,
    ) -> torch.Tensor:
        size = input.numel() // input.size(1)
        values = _opmath(input)
        if size:
            var, mean = torch.var_mean(values, _but_channels(input), correction=0)
        else:
            var = mean = values.new_zeros(input.size(1))
        own = torch.cat([mean, var, mean.new_full((1,), size)])
        everyones = own.new_empty(world_size, own.numel())
        dist.all_gather_into_tensor(everyones, own, process_group)
        means, variances, sizes = everyones.split([mean.numel(), mean.numel(), 1], 1)
        total = sizes.sum()
        mean = (means * sizes).sum(0) / total
        var = ((variances + (means - mean).square()) * sizes).sum(0) / total
        if running_mean is not None and running_var is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            unbiased = (var * total / (total - 1)).to(running_var.dtype)
            running_var.lerp_(unbiased, momentum)
        invstd = torch.rsqrt(var + eps)
        ctx.save_for_backward(input, weight, mean, invstd, total)
        ctx.process_group = process_group
        normal = (values - _along(mean, input)) * _along(invstd, input)
        if weight is not None:
            normal = normal * _along(_opmath(weight), input)
        if bias is not None:
            normal = normal + _along(_opmath(bias), input)
        return normal.to(input.dtype)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        input, weight, mean, invstd, total = ctx.saved_tensors
        gradient = _opmath(grad_output)
        dims = _but_channels(input)
        normal = (_opmath(input) - _along(mean, input)) * _along(invstd, input)
        grad_bias = gradient.sum(dims)
        grad_weight = (gradient * normal).sum(dims)
        grad_input = None
        if ctx.needs_input_grad[0]:
            sums = torch.cat([grad_bias, grad_weight])
            dist.all_reduce(sums, group=ctx.process_group)
            shift, slope = (sums / total).chunk(2)
            scale = invstd if weight is None else invstd * _opmath(weight)
            centred = gradient - _along(shift, input) - normal * _along(slope, input)
            grad_input = (centred * _along(scale, input)).to(input.dtype)
        wants_weight, wants_bias = ctx.needs_input_grad[1:3]
        return (
            grad_input,
            grad_weight.to(weight.dtype) if wants_weight else None,
            grad_bias.to(weight.dtype if weight is not None else input.dtype)
            if wants_bias
            else None,
            *(None,) * 6,
        )


def _opmath(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _but_channels(input: torch.Tensor) -> list[int]:
    return [dim for dim in range(input.dim()) if dim != 1]


def _along(per_channel: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    return per_channel.view(-1, *(1,) * (input.dim() - 2))


class _SyncBatchNormByDevice:
    @staticmethod
    def apply(input: torch.Tensor, *args: Any) -> Any:
        chosen = SyncBatchNorm if is_device_tensor(input) else _functions.SyncBatchNorm
        return chosen.apply(input, *args)


def register() -> None:
    """Put them where torch looks for its own."""
    for module, name, ours in (
        (dist, "Reducer", Reducer),
        (dist, "Logger", Logger),
        (dist, "_verify_params_across_processes", verify_parameters),
        (batchnorm, "sync_batch_norm", _SyncBatchNormByDevice),
    ):
        setattr(module, name, ours)
