"""Trains one model on two devices from the same weights and batches, for comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

import trcomp.runtime as rt

Batch = Mapping[str, torch.Tensor]
MakeModel = Callable[[], torch.nn.Module]
MakeBatch = Callable[[torch.Generator], Batch]
MakeOptimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


@dataclass
class Run:
    """What training left behind, on the CPU."""

    losses: torch.Tensor
    parameters: dict[str, torch.Tensor]
    compiles: int
    compiles_after_second_step: int
    fallbacks: dict[str, int]


def train(
    device: str,
    make_model: MakeModel,
    make_batch: MakeBatch,
    make_optimizer: MakeOptimizer,
    *,
    steps: int = 20,
    before_step: Callable[[torch.optim.Optimizer, int], None] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Run:
    """Train for some steps with fixed seeds; four batches in turn."""
    torch.manual_seed(0)
    model = make_model().to(dtype).to(device).train()
    optimizer = make_optimizer(list(model.parameters()))
    generator = torch.Generator().manual_seed(1)
    batches = [make_batch(generator) for _ in range(4)]
    before = rt.metrics()
    losses = []
    for i in range(steps):
        batch = {
            name: (t.to(dtype) if t.is_floating_point() else t).to(device)
            for name, t in batches[i % len(batches)].items()
        }
        if before_step is not None:
            before_step(optimizer, i)
        optimizer.zero_grad()
        made = model(**batch)
        loss = made.loss if hasattr(made, "loss") else made
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        rt.sync()
        if i == 1:
            warm = rt.metrics()["compiles"]
    after = rt.metrics()
    return Run(
        losses=torch.stack([loss.cpu() for loss in losses]),
        parameters={name: p.detach().cpu() for name, p in model.state_dict().items()},
        compiles=after["compiles"] - before["compiles"],
        compiles_after_second_step=after["compiles"] - warm,
        fallbacks={
            name: count - before["fallbacks"].get(name, 0)
            for name, count in after["fallbacks"].items()
            if count != before["fallbacks"].get(name, 0)
        },
    )


def assert_same(run: Run, reference: Run, *, loss: float = 1e-4, parameters: float = 1e-3) -> None:
    """The run's losses and parameters are the reference's, within relative tolerances."""
    torch.testing.assert_close(run.losses, reference.losses, rtol=loss, atol=loss)
    for name, expected in reference.parameters.items():
        torch.testing.assert_close(
            run.parameters[name],
            expected,
            rtol=parameters,
            atol=parameters,
            msg=lambda text, name=name: f"{name}: {text}",
        )
