"""Random streams: whole distributions, seeds, states, generators, recomputed masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import trcomp.runtime as rt
from trcomp.runtime.device import DEVICE
from trcomp.runtime.graph import build
from trcomp.runtime.ir import restore_pending, take_pending
from trcomp.runtime.metrics import counters

pytestmark = pytest.mark.runtime
N = 40_000
xla = torch.xla  # type: ignore[attr-defined]

Draw = Callable[[torch.Tensor], torch.Tensor]

CONTINUOUS: dict[str, tuple[Draw, Any]] = {
    "rand": (lambda t: torch.rand_like(t), stats.uniform.cdf),
    "uniform": (lambda t: t.uniform_(-2, 6), stats.uniform(-2, 8).cdf),
    "randn": (lambda t: torch.randn_like(t), stats.norm.cdf),
    "normal": (lambda t: t.normal_(1, 0.5), stats.norm(1, 0.5).cdf),
    "normal of tensors": (
        lambda t: torch.normal(torch.ones_like(t), 2 * torch.ones_like(t)),
        stats.norm(1, 2).cdf,
    ),
    "log_normal": (lambda t: t.log_normal_(0, 1), stats.lognorm(1).cdf),
    "exponential": (lambda t: t.exponential_(3), stats.expon(scale=1 / 3).cdf),
    "cauchy": (lambda t: t.cauchy_(0, 1), stats.cauchy.cdf),
    "trunc_normal": (
        lambda t: torch.nn.init.trunc_normal_(t, a=-1, b=1),
        stats.truncnorm(-1, 1).cdf,
    ),
}

DISCRETE: dict[str, tuple[Draw, list[float]]] = {
    "bernoulli": (lambda t: t.bernoulli_(0.2), [0.8, 0.2]),
    "bernoulli of tensors": (lambda t: torch.bernoulli(torch.full_like(t, 0.7)), [0.3, 0.7]),
    "dropout": (lambda t: (F.dropout(torch.ones_like(t), 0.25) != 0).long(), [0.25, 0.75]),
    "randint": (lambda t: torch.randint(0, 7, t.shape, device=DEVICE), [1 / 7] * 7),
    "random_": (lambda t: t.random_(5), [0.2] * 5),
    "geometric": (lambda t: (t.geometric_(0.5) - 1).clamp_(max=3), [0.5, 0.25, 0.125, 0.125]),
    "multinomial": (
        lambda t: torch.multinomial(t.new_tensor([1, 2, 3, 4]), N, replacement=True),
        [0.1, 0.2, 0.3, 0.4],
    ),
    "order of uniform draws": (
        lambda t: torch.rand(N, 4, device=DEVICE).argsort(1)[:, 0],
        [0.25] * 4,
    ),
}


def test_continuous_draws_pass_kolmogorov_and_smirnovs_test() -> None:
    torch.manual_seed(11)
    drawn = {name: draw(torch.empty(N, device=DEVICE)) for name, (draw, _) in CONTINUOUS.items()}
    rt.sync()
    for name, values in drawn.items():
        found = stats.kstest(values.cpu().double().numpy(), CONTINUOUS[name][1])
        assert found.pvalue > 1e-3, (name, found)


def test_discrete_draws_pass_the_chi_squared_test() -> None:
    torch.manual_seed(12)
    drawn = {name: draw(torch.empty(N, device=DEVICE)) for name, (draw, _) in DISCRETE.items()}
    rt.sync()
    for name, values in drawn.items():
        probabilities = DISCRETE[name][1]
        counts = torch.bincount(values.cpu().long(), minlength=len(probabilities))
        expected = [values.numel() * p for p in probabilities]
        found = stats.chisquare(counts.numpy(), expected)
        assert found.pvalue > 1e-3, (name, counts, found)


SEEDERS: list[Callable[[int], Any]] = [
    torch.manual_seed,
    torch.random.manual_seed,
    xla.manual_seed,
    xla.manual_seed_all,
    rt.manual_seed,
]


@pytest.mark.parametrize("seed", SEEDERS)
def test_every_way_of_seeding_decides_the_stream_and_compiles_nothing(
    seed: Callable[[int], Any],
) -> None:
    def draw() -> list[float]:
        made = torch.rand(3, device=DEVICE).tolist()
        return made  # type: ignore[no-any-return]

    draw()
    compiles = counters.compiles
    seed(21)
    first, second = draw(), draw()
    seed(22)
    other = draw()
    seed(21)
    assert [draw(), draw()] == [first, second]
    assert first != second != other != first
    assert counters.compiles == compiles
    seed(-5)
    seed(2**63)


def test_a_seed_that_the_system_draws_is_another_each_time() -> None:
    seeds = []
    for draw in (xla.seed, xla.seed_all, torch.seed):
        draw()
        seeds.append(xla.initial_seed())
    assert len(set(seeds)) == 3


def test_the_states_words_are_those_of_torch_cuda() -> None:
    torch.manual_seed(4)
    assert xla.initial_seed() == 4
    state, states = xla.get_rng_state(), xla.get_rng_state_all()
    made = torch.rand(2, device=DEVICE).tolist()
    for restore in (
        lambda: xla.set_rng_state(state),
        lambda: xla.set_rng_state(state, DEVICE),
        lambda: xla.set_rng_state_all(states),
    ):
        restore()
        assert torch.rand(2, device=DEVICE).tolist() == made
    with pytest.raises(ValueError, match="16"):
        xla.set_rng_state(torch.zeros(3, dtype=torch.uint8))


@pytest.mark.parametrize("options", [{}, {"devices": [0]}, {"devices": [DEVICE]}])
def test_a_forked_stream_leaves_the_outer_one_where_it_was(options: dict[str, Any]) -> None:
    torch.manual_seed(6)
    expected = torch.rand(2, device=DEVICE).tolist()
    torch.manual_seed(6)
    with torch.random.fork_rng(device_type="xla", **options):
        assert torch.rand(2, device=DEVICE).tolist() == expected
        torch.manual_seed(99)
    assert torch.rand(2, device=DEVICE).tolist() == expected


DRAWS: dict[str, Callable[[torch.Generator], torch.Tensor]] = {
    "rand": lambda g: torch.rand(4, device=DEVICE, generator=g),
    "randn": lambda g: torch.randn(4, device=DEVICE, generator=g),
    "randint": lambda g: torch.randint(0, 1000, (4,), device=DEVICE, generator=g),
    "randperm": lambda g: torch.randperm(50, device=DEVICE, generator=g),
    "bernoulli": lambda g: torch.bernoulli(torch.full((50,), 0.5, device=DEVICE), generator=g),
    "multinomial": lambda g: torch.multinomial(torch.ones(50, device=DEVICE), 9, generator=g),
    "normal": lambda g: torch.normal(0.0, 1.0, (4,), device=DEVICE, generator=g),
    "in place": lambda g: torch.empty(4, device=DEVICE).exponential_(generator=g),
    "init": lambda g: torch.nn.init.kaiming_uniform_(torch.empty(3, 3, device=DEVICE), generator=g),
}


@pytest.mark.parametrize("device", ["cpu", "xla", "xla:0", DEVICE])
def test_a_generator_drives_every_kind_of_draw(device: Any) -> None:
    g = torch.Generator(device=device).manual_seed(8)
    torch.manual_seed(1)
    alone = torch.rand(2, device=DEVICE).tolist()
    torch.manual_seed(1)
    state = g.get_state()
    first = {name: draw(g).tolist() for name, draw in DRAWS.items()}
    second = {name: draw(g).tolist() for name, draw in DRAWS.items()}
    g.set_state(state)
    again = {name: draw(g).tolist() for name, draw in DRAWS.items()}
    assert first == again
    assert all(first[name] != second[name] for name in DRAWS)
    assert torch.rand(2, device=DEVICE).tolist() == alone


def test_a_generator_names_its_device_and_is_one() -> None:
    g = torch.Generator("xla")
    assert g.device == DEVICE
    assert torch.Generator().device == torch.Generator("cpu").device == torch.device("cpu")
    for made in (g, torch.Generator(), torch.default_generator):
        assert isinstance(made, torch.Generator)
    assert not isinstance(3, torch.Generator)
    assert issubclass(type(g), torch.Generator)
    order = torch.utils.data.RandomSampler(range(5), generator=torch.Generator().manual_seed(1))
    assert sorted(order) == [0, 1, 2, 3, 4]
    with pytest.raises(RuntimeError, match="xla:0 alone"):
        torch.Generator("xla:1")


def test_consecutive_steps_and_equal_calls_draw_different_numbers() -> None:
    seen = set()
    for _ in range(4):
        a, b = torch.rand(3, device=DEVICE), torch.rand(3, device=DEVICE)
        rt.sync()
        seen |= {tuple(a.tolist()), tuple(b.tolist())}
    assert len(seen) == 8


def _block(reentrant: bool) -> tuple[torch.nn.Sequential, torch.Tensor]:
    torch.manual_seed(0)
    block = torch.nn.Sequential(
        torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Dropout(0.5), torch.nn.Linear(6, 6)
    )
    return block.to(DEVICE), torch.randn(8, 6).to(DEVICE).requires_grad_()


Run = Callable[[torch.nn.Sequential, torch.Tensor], Any]


def _trained(run: Run, block: torch.nn.Sequential, x: torch.Tensor) -> list[torch.Tensor]:
    for leaf in (x, *block.parameters()):
        leaf.grad = None
    torch.manual_seed(5)
    loss = run(block, x).square().sum()
    loss.backward()
    after = torch.rand(1, device=DEVICE)
    return [loss.detach(), after, *(leaf.grad for leaf in (x, *block.parameters()))]


CHECKPOINTS: dict[str, Run] = {
    "reentrant": lambda block, x: checkpoint(block, x, use_reentrant=True),
    "not reentrant": lambda block, x: checkpoint(block, x, use_reentrant=False),
    "segments": lambda block, x: checkpoint_sequential(block, 2, x, use_reentrant=False),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_drops_again_what_it_dropped(name: str) -> None:
    block, x = _block(reentrant=False)
    expected = _trained(torch.nn.Sequential.forward, block, x)
    made = _trained(CHECKPOINTS[name], block, x)
    for left, right in zip(made, expected, strict=True):
        torch.testing.assert_close(left.cpu(), right.cpu())


@pytest.mark.parametrize("name", ["reentrant", "not reentrant"])
def test_what_a_checkpoint_recomputes_is_behind_a_barrier(name: str) -> None:
    block, x = _block(reentrant=False)
    rt.sync()
    values = _trained(CHECKPOINTS[name], block, x)
    pending = take_pending()
    graph = build(pending, donate=False)
    restore_pending(pending)
    text = str(graph)
    # Twice forward, and the second time from inputs that XLA cannot tell to be the same.
    assert text.count("= tanh ") == 2
    barrier = next(
        i for i, n in enumerate(graph.nodes) if n.signature.rule.name.endswith("barrier")
    )
    assert any((barrier, 0) in places for places in graph.places[barrier + 1 :])
    assert values[0].isfinite().item()


def test_a_recomputed_graph_lowers_with_the_barrier_in_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("TRCOMP_DEBUG", "1")
    monkeypatch.setenv("TRCOMP_REPORT_DIR", str(tmp_path / "trcomp"))
    block, x = _block(reentrant=False)
    rt.sync()
    _trained(CHECKPOINTS["not reentrant"], block, x)
    rt.sync()
    texts = [path.read_text() for path in tmp_path.glob("compiler/*.stablehlo.txt")]
    (text,) = [text for text in texts if "optimization_barrier" in text]
    assert text.count("stablehlo.tanh") == 2


def test_gradients_flow_through_a_barrier_and_inputs_keep_their_names() -> None:
    def both(a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
        return (a * b).sin() * scale

    a, b = (torch.rand(3, device=DEVICE, requires_grad=True) for _ in range(2))
    whole = torch.arange(3, device=DEVICE)
    made = checkpoint(both, a, b, 2.0, use_reentrant=False)
    made = made + checkpoint(both, a, whole, 1.0, use_reentrant=False)
    (grad,) = torch.autograd.grad(made.sum(), a)
    due = 2 * b * (a * b).cos() + whole * (a * whole).cos()
    torch.testing.assert_close(grad.cpu(), due.detach().cpu())


def test_a_checkpoint_can_be_differentiated_twice() -> None:
    x = torch.tensor([0.5, 2.0], device=DEVICE, requires_grad=True)
    y = checkpoint(lambda t: t.sin() * t, x, use_reentrant=False).sum()
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second.cpu(), (2 * x.cos() - x * x.sin()).detach().cpu())


def test_the_place_in_the_stream_is_one_number_and_asking_for_it_draws_nothing() -> None:
    torch.manual_seed(5)
    torch.rand(3, device=DEVICE)
    place, state = rt.take_rng_state(), xla.get_rng_state()
    assert rt.take_rng_state() == place
    assert int(torch.tensor(place)) == place, "frameworks keep it in an int64 tensor"
    draws = torch.rand(3, device=DEVICE).tolist(), torch.rand(3, device=DEVICE).tolist()
    rt.manual_seed(place)
    assert torch.rand(3, device=DEVICE).tolist() == draws[0]
    xla.set_rng_state(state)
    assert (torch.rand(3, device=DEVICE).tolist(), torch.rand(3, device=DEVICE).tolist()) == draws
