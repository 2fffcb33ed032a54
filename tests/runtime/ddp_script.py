"""What each rank does in `test_ddp`: trains small models, on the device or plainly over gloo."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import trcomp.runtime as rt

STEPS = 4


class Net(nn.Module):
    """An MLP with two heads; `heads` says which of them a step uses."""

    def __init__(self, norm: bool, heads: Callable[[int], str]) -> None:
        super().__init__()
        self.body = nn.Linear(20, 30)
        self.norm = nn.BatchNorm1d(30) if norm else nn.Identity()
        self.a, self.b = nn.Linear(30, 4), nn.Linear(30, 4)
        self.heads, self.step = heads, 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.norm(self.body(inputs)))
        self.step += 1
        used = [getattr(self, name)(hidden) for name in self.heads(self.step)]
        return torch.stack(used).sum(0)


def train(
    ddp: dict[str, Any] | None = None,
    norm: bool = False,
    heads: Callable[[int], str] = lambda step: "ab",
    accumulate: int = 1,
    hook: Any = None,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    join: bool = False,
    sync_norm: bool = False,
) -> dict[str, Any]:
    """Train a few steps; what came of it, and what it took."""
    device = rt.device()
    # Ranks begin with other weights: DDP gives all of them those of rank 0.
    torch.manual_seed(rt.rank())
    net: nn.Module = Net(norm, heads)
    if sync_norm:
        net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    model = DistributedDataParallel(net.to(device), **(ddp or {}))
    if hook is not None:
        model.register_comm_hook(None, hook)
    made = (optimizer or momentum)(model.parameters())
    return steps(model, made, accumulate, join)


def steps(
    model: Any, optimizer: torch.optim.Optimizer, accumulate: int = 1, join: bool = False
) -> dict[str, Any]:
    """A few steps of training."""
    rank, device = rt.rank(), rt.device()
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(STEPS, accumulate, 2, 8, 20, generator=generator)
    labels = torch.randint(0, 4, (STEPS, accumulate, 2, 8), generator=generator)
    num_steps = STEPS - 2 * rank if join else STEPS
    rt.sync()
    before = rt.metrics()
    losses, compiles = [], []
    with Join([model]) if join else contextlib.nullcontext():
        for step in range(num_steps):
            optimizer.zero_grad()
            for part in range(accumulate):
                last = part == accumulate - 1
                with contextlib.nullcontext() if last else model.no_sync():
                    logits = model(inputs[step, part, rank].to(device))
                    loss = nn.functional.cross_entropy(logits, labels[step, part, rank].to(device))
                    loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            rt.sync()
            compiles.append(rt.metrics()["compiles"] - before["compiles"])
    gradients = [parameter.grad for parameter in model.parameters()]
    return {
        "losses": [loss.item() for loss in losses],
        "gradients": [None if grad is None else grad.tolist() for grad in gradients],
        "parameters": [parameter.tolist() for parameter in model.parameters()],
        "buffers": [buffer.tolist() for buffer in model.buffers()],
        "compiles": compiles,
        "early_syncs": rt.metrics()["early_syncs"] - before["early_syncs"],
        "fallbacks": dict(rt.metrics()["fallbacks"]),
    }


def momentum(parameters: Any) -> torch.optim.Optimizer:
    """The usual one."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def zero(**options: Any) -> Callable[[Any], torch.optim.Optimizer]:
    """An optimizer whose state is shared out over the ranks."""

    def make(parameters: Any) -> torch.optim.Optimizer:
        # At the top it would warn in pytest's own process, of what torch itself does.
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(
            parameters, optimizer_class=torch.optim.Adam, lr=0.01, **options
        )

    return make


def by_turns(step: int) -> str:
    """Ranks use other heads than each other, and than at the step before."""
    return "ab"[(step + rt.rank()) % 2]


CASES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "views of buckets": {"ddp": {"gradient_as_bucket_view": True}},
    "many buckets": {"ddp": {"bucket_cap_mb": 0.001}},
    "batch norm": {"norm": True},
    "no sync": {"accumulate": 3},
    "heads by turns": {"ddp": {"find_unused_parameters": True}, "heads": by_turns},
    "an unused head": {"ddp": {"find_unused_parameters": True}, "heads": lambda step: "a"},
    "static graph": {"ddp": {"static_graph": True}, "heads": lambda step: "a"},
    "half the bits": {"hook": default_hooks.fp16_compress_hook},
    "zero": {"optimizer": zero()},
    "zero in buckets": {"optimizer": zero(parameters_as_bucket_view=True)},
    "uneven inputs": {"join": True},
}


def main() -> None:
    """Run all cases and leave what they found."""
    on_device = rt.device().type == "xla"
    dist.init_process_group("xla" if on_device else "gloo")
    found = {name: train(**case) for name, case in CASES.items()}
    if on_device:
        found["sync batch norm"] = train(norm=True, sync_norm=True)
    Path(f"found-{rt.rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
