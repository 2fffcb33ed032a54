"""Random draws: distributions, seeds, generators; a new draw never compiles."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import trcomp.runtime as rt
from trcomp.runtime.device import DEVICE
from trcomp.runtime.metrics import counters

pytestmark = pytest.mark.runtime
N = 20_000

DISTRIBUTIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float, float]] = {
    "uniform": (lambda t: t.uniform_(-1, 3), 1, (16 / 12) ** 0.5),
    "normal": (lambda t: t.normal_(2, 3), 2, 3),
    "exponential": (lambda t: t.exponential_(2), 0.5, 0.5),
    "bernoulli": (lambda t: t.bernoulli_(0.3), 0.3, 0.21**0.5),
    "geometric": (lambda t: t.geometric_(0.25), 4, 12**0.5),
    "randint": (lambda t: t.random_(0, 10), 4.5, (99 / 12) ** 0.5),
    "log_normal": (lambda t: t.log_normal_(0, 0.25).log(), 0, 0.25),
    "cauchy": (lambda t: t.cauchy_(1, 2).sub(1).div(2).atan(), 0, 3.1416 / 12**0.5),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_moments_are_those_of_the_distribution(dtype: torch.dtype) -> None:
    draws = {
        name: draw(torch.empty(N, dtype=dtype, device=DEVICE))
        for name, (draw, _, _) in DISTRIBUTIONS.items()
    }
    rt.sync()
    for name, drawn in draws.items():
        mean, std = DISTRIBUTIONS[name][1:]
        values = drawn.cpu().double()
        assert abs(values.mean() - mean) < 5 * std / N**0.5 + 0.005 * abs(mean), name
        assert abs(values.std() - std) < 0.05 * std, name


def test_uniform_draws_stay_below_the_upper_end() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        drawn = torch.rand(200_000, dtype=dtype, device=DEVICE).cpu()
        assert drawn.min() >= 0 and drawn.max() < 1


def test_dropout_masks_differ_between_steps_and_repeat_with_the_seed() -> None:
    x = torch.ones(1000, device=DEVICE)

    def steps() -> list[torch.Tensor]:
        torch.manual_seed(7)
        made = []
        for _ in range(3):
            made.append(F.dropout(x, 0.4))
            rt.sync()
        return [m.cpu() for m in made]

    first = steps()
    compiles = counters.compiles
    again = steps()
    assert counters.compiles == compiles
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[1], first[2])
    assert all(map(torch.equal, first, again))
    kept = first[0] != 0
    assert abs(kept.float().mean() - 0.6) < 0.08
    torch.testing.assert_close(first[0][kept], torch.full_like(first[0][kept], 1 / 0.6))


def test_another_seed_or_probability_compiles_nothing() -> None:
    x = torch.ones(100, device=DEVICE)
    rt.sync()

    def draw(seed: int, p: float) -> torch.Tensor:
        torch.manual_seed(seed)
        made = F.dropout(x, p) + torch.rand(100, device=DEVICE)
        rt.sync()
        return made

    first = draw(1, 0.5)
    compiles = counters.compiles
    second, third = draw(2, 0.5), draw(2, 0.25)
    assert counters.compiles == compiles
    assert not torch.equal(first.cpu(), second.cpu())
    assert not torch.equal(second.cpu(), third.cpu())


def test_backward_drops_what_forward_dropped() -> None:
    x = torch.ones(500, device=DEVICE, requires_grad=True)
    y = F.dropout(x, 0.5)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), y.detach().cpu())


def test_two_draws_of_one_step_are_independent() -> None:
    a, b = torch.rand(N, device=DEVICE), torch.rand(N, device=DEVICE)
    pair = torch.stack([a, b]).cpu()
    assert abs(torch.corrcoef(pair)[0, 1]) < 0.05


def test_a_generator_of_the_callers_decides_and_the_stream_stays() -> None:
    torch.manual_seed(3)
    alone = torch.rand(10, device=DEVICE).cpu()
    torch.manual_seed(3)
    made = [
        torch.empty(10, device=DEVICE).normal_(generator=torch.Generator().manual_seed(5)).cpu()
        for _ in range(2)
    ]
    assert torch.equal(*made)
    assert torch.equal(torch.rand(10, device=DEVICE).cpu(), alone)


def test_randperm_and_randint() -> None:
    order = torch.randperm(1000, device=DEVICE)
    numbers = torch.randint(-5, 5, (1000,), device=DEVICE)
    assert order.dtype == numbers.dtype == torch.int64
    assert torch.equal(order.cpu().sort()[0], torch.arange(1000))
    assert not torch.equal(order.cpu(), torch.arange(1000))
    assert set(numbers.cpu().tolist()) == set(range(-5, 5))


def test_multinomial_follows_the_weights() -> None:
    weights = torch.tensor([0.0, 1.0, 3.0], device=DEVICE)
    drawn = torch.multinomial(weights, N, replacement=True).cpu()
    counts = torch.bincount(drawn, minlength=3) / N
    torch.testing.assert_close(counts, torch.tensor([0.0, 0.25, 0.75]), rtol=0, atol=0.02)
    pairs = torch.multinomial(weights.expand(50, 3), 2).cpu()
    assert pairs.sort(1)[0].tolist() == [[1, 2]] * 50


def test_arguments_out_of_range_are_refused() -> None:
    x = torch.empty(3, device=DEVICE)
    for draw in (
        lambda: x.normal_(0, -1),
        lambda: x.bernoulli_(2.0),
        lambda: x.exponential_(0),
        lambda: x.uniform_(1, 0),
        lambda: x.random_(3, 3),
        lambda: torch.multinomial(x, 4),
    ):
        with pytest.raises(RuntimeError):
            draw()
