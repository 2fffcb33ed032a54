"""Draws in compiled code: anew in each call, alike in forward and backward, repeated by a seed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trcomp.runtime as rt

pytestmark = pytest.mark.runtime


@pytest.fixture(autouse=True)
def _from_nothing() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def drop(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.5)


def test_each_call_draws_anew_and_a_seed_repeats_it_without_a_compile() -> None:
    run, ones = torch.compile(drop, backend="trcomp"), torch.ones(64).to("xla")
    torch.manual_seed(1)
    first, second = run(ones).cpu(), run(ones).cpu()
    compiles = rt.metrics()["compiles"]
    torch.manual_seed(1)
    again = run(ones).cpu()
    torch.manual_seed(2)
    other = run(ones).cpu()
    assert not first.equal(second)
    assert again.equal(first)
    assert not other.equal(first)
    assert rt.metrics()["compiles"] == compiles


def test_the_same_seed_drops_the_same_as_without_torch_compile() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn_like(x) + torch.rand(64, device=x.device)
        return drop(x) + drop(x * 2) * noise

    x, made = torch.randn(64).to("xla"), []
    for run in (function, torch.compile(function, backend="trcomp")):
        torch.manual_seed(3)
        made += [torch.stack([run(x), run(x)]).cpu()]
    assert made[0].equal(made[1])


def test_backward_uses_the_masks_of_the_forward_pass() -> None:
    run = torch.compile(drop, backend="trcomp")
    for _ in range(3):
        x = torch.ones(64).to("xla").requires_grad_()
        made = run(x)
        made.sum().backward()
        assert x.grad.cpu().equal(made.detach().cpu())


def test_dropout_in_attention() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.4)

    gradients = []
    for run in (function, torch.compile(function, backend="trcomp")):
        torch.manual_seed(0)
        operands = [torch.randn(2, 3, 5, 4).to("xla").requires_grad_() for _ in range(3)]
        run(*operands).square().sum().backward()
        gradients.append([t.grad.cpu() for t in operands])
    torch.testing.assert_close(gradients[1], gradients[0])


def test_a_training_run_repeats_with_its_seed_and_differs_with_another() -> None:
    def losses(seed: int) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.3), nn.Linear(16, 1)).to("xla")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run, x = torch.compile(model, backend="trcomp"), torch.randn(8, 6).to("xla")
        torch.manual_seed(seed)
        made = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = run(x).square().mean()
            loss.backward()
            optimizer.step()
            rt.sync()
            made.append(loss.detach())
        return torch.stack(made).cpu()

    first = losses(1)
    compiles = rt.metrics()["compiles"]
    assert losses(1).equal(first)
    assert not losses(2).equal(first)
    assert rt.metrics()["compiles"] == compiles


def test_a_draw_whose_generator_the_caller_brings() -> None:
    def function(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return x + torch.empty_like(x).normal_(generator=generator)

    run, x = torch.compile(function, backend="trcomp"), torch.zeros(8).to("xla")
    made = [run(x, torch.Generator().manual_seed(seed)).cpu() for seed in (1, 2, 1)]
    assert made[0].equal(made[2])
    assert not made[0].equal(made[1])
