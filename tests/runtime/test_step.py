"""`trcomp.step`: the function's own numbers, one node a call, captured again when due."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import trcomp
import trcomp.runtime as rt

pytestmark = pytest.mark.runtime
Step = Callable[..., Any]


def mlp(dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 8, bias=False),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(8, 3),
    )


class Training:
    """One model in training; `step` is a plain function of a batch."""

    def __init__(
        self,
        device: str,
        make_optimizer: Callable[..., torch.optim.Optimizer],
        dropout: float = 0.0,
    ) -> None:
        torch.manual_seed(0)
        self.model = mlp(dropout).to(device)
        self.optimizer = make_optimizer(self.model.parameters())
        self.batches = torch.Generator().manual_seed(1)
        self.device = device

    def function(self) -> Step:
        model, optimizer = self.model, self.optimizer

        def train_step(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            return loss

        return train_step

    def batch(self, size: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(size, 6, generator=self.batches)
        labels = torch.randint(3, (size,), generator=self.batches)
        return inputs.to(self.device), labels.to(self.device)

    def left(self) -> list[Any]:
        """All that training leaves behind, on the CPU."""
        state = [
            value.cpu() if isinstance(value, torch.Tensor) else value
            for held in self.optimizer.state.values()
            for value in held.values()
            if value is not None
        ]
        gradients = [None if p.grad is None else p.grad.cpu() for p in self.model.parameters()]
        buffers = [value.cpu() for value in self.model.state_dict().values()]
        return [*state, *(g for g in gradients if g is not None), *buffers]


class Counted:
    """What was counted within a `with`."""

    def __enter__(self) -> Counted:
        self._before = rt.metrics()
        return self

    def __exit__(self, *raised: Any) -> None:
        self.after = rt.metrics()

    def __getattr__(self, name: str) -> int:
        return int(self.after[name] - self._before[name])


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.0, 0.9)),
    "Adam one by one": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_captured_step_trains_as_the_function_does(name: str) -> None:
    """Losses, parameters, running statistics, gradients and counters, while a schedule runs."""

    def train(device: str, wrap: Callable[[Step], Step], dropout: float) -> list[Any]:
        training = Training(device, OPTIMIZERS[name], dropout)
        schedule = torch.optim.lr_scheduler.StepLR(training.optimizer, 2, 0.5)
        run = wrap(training.function())
        losses = []
        for _ in range(6):
            losses.append(run(*training.batch()).detach())
            schedule.step()
            rt.sync()
        return [*(loss.cpu() for loss in losses), *training.left()]

    with Counted() as counted:
        got = train("xla", trcomp.step, 0.3)
    assert counted.captures == 1
    assert counted.replays == 5
    torch.testing.assert_close(got, train("xla", lambda f: f, 0.3), rtol=1e-6, atol=1e-7)
    still, eager = train("xla", trcomp.step, 0.0), train("cpu", lambda f: f, 0.0)
    torch.testing.assert_close(still, eager, rtol=1e-4, atol=1e-5)


def test_a_call_is_one_node_and_nothing_compiles_again() -> None:
    training = Training("xla", OPTIMIZERS["AdamW"], 0.1)
    run = trcomp.step(training.function())
    for _ in range(2):
        batch = training.batch()
        run(*batch)
        rt.sync()
    with Counted() as counted:
        for _ in range(5):
            batch = training.batch()
            training.optimizer.param_groups[0]["lr"] *= 0.9
            run(*batch)
            rt.sync()
    assert counted.recorded_nodes == 5
    assert (counted.compiles, counted.captures, counted.early_syncs) == (0, 0, 0)
    assert counted.executions == 5


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


Change = Callable[[Training], None]


def freeze(training: Training) -> None:
    training.model[0].weight.requires_grad_(False)  # type: ignore[index, union-attr]


CHANGES: dict[str, tuple[Change, str]] = {
    "mode": (lambda t: t.model.eval() and None, "model.training was True and is False"),
    "layer": (lambda t: t.model[3].eval() and None, "model.3.training was True and is False"),  # type: ignore[index]
    "frozen": (freeze, "model.0.weight was requires_grad=True and is requires_grad=False"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_captures_again_and_says_why(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change, reason = CHANGES[name]

    def train(wrap: Callable[[Step], Step]) -> list[Any]:
        training = Training("xla", OPTIMIZERS["momentum"], 0.3)
        run = wrap(training.function())
        for i in range(6):
            if i == 3:
                change(training)
            run(*training.batch())
            rt.sync()
        return training.left()

    with Counted() as counted:
        got = train(trcomp.step)
    assert counted.captures == 2
    assert reason in said(capsys)
    torch.testing.assert_close(got, train(lambda f: f), rtol=1e-6, atol=1e-7)


def test_shapes_are_captured_once_each_and_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    training = Training("xla", OPTIMIZERS["SGD"])
    run = trcomp.step(training.function())
    with Counted() as counted:
        for size in (4, 4, 3, 4, 3, 4):
            run(*training.batch(size))
            rt.sync()
    assert counted.captures == 2
    assert counted.replays == 5
    text = said(capsys)
    assert "train_step: captured again: inputs was float32[4, 6] and is float32[3, 6]" in text
    assert len(text.splitlines()) == 1


def test_a_float_argument_may_differ_and_an_int_may_not(capsys: pytest.CaptureFixture[str]) -> None:
    @trcomp.step
    def scaled(value: torch.Tensor, by: float, times: int) -> Any:
        return value * by + times, by * 2

    ones = torch.ones(3, device="xla")
    with Counted() as counted:
        for by in (0.5, 0.25, 3.0, 1.0, 0.0):
            made, twice = scaled(ones, by, 2)
            assert (made.tolist(), twice) == ([by + 2] * 3, by * 2)
    assert counted.captures == 1
    assert scaled(ones, 0.5, 7)[0].tolist() == [7.5] * 3
    assert "times was 2 and is 7" in said(capsys)


def test_a_comparison_of_a_float_is_a_guard() -> None:
    @trcomp.step
    def warm(value: torch.Tensor, rate: float) -> torch.Tensor:
        return value * rate if rate < 0.5 else value - rate

    ones = torch.ones(2, device="xla")
    for rate in (0.1, 0.2, 0.3, 0.7, 0.8, 0.4):
        expected = rate if rate < 0.5 else 1 - rate
        torch.testing.assert_close(warm(ones, rate).cpu(), torch.full((2,), expected))


def test_another_optimizer_or_parameter_behind_the_same_name() -> None:
    def train(wrap: Callable[[Step], Step]) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Linear(3, 1).to("xla")
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)

        def run(inputs: torch.Tensor) -> None:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()

        run = wrap(run)
        inputs = torch.ones(2, 3, device="xla")
        for i in range(9):
            if i == 3:
                optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
            if i == 6:
                model.bias = nn.Parameter(torch.ones(1, device="xla"))
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            if i == 8:
                model.weight.data = torch.ones(1, 3, device="xla")
            run(inputs)
            rt.sync()
        return torch.cat([model.weight.flatten(), model.bias]).detach().cpu()

    torch.testing.assert_close(train(trcomp.step), train(lambda f: f))


def test_gradients_that_live_on_are_added_to() -> None:
    def train(wrap: Callable[[Step], Step]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(3, 2).to("xla")
        optimizer = torch.optim.AdamW(model.parameters())

        @wrap
        def accumulate(inputs: torch.Tensor) -> torch.Tensor:
            loss = model(inputs).square().mean()
            loss.backward()
            return loss.detach()

        @wrap
        def update() -> None:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()

        seen = []
        for i in range(12):
            seen.append(accumulate(torch.full((2, 3), i / 4 + 1).to("xla")))
            if i % 3 == 2:
                update()
                seen.append(model.weight.grad.clone())
                optimizer.zero_grad()
            rt.sync()
        return [*(t.cpu() for t in seen), model.weight.detach().cpu()]

    with Counted() as counted:
        got = train(trcomp.step)
    torch.testing.assert_close(got, train(lambda f: f))
    assert counted.replays >= 8


def test_a_kept_gradient_is_not_overwritten() -> None:
    training = Training("xla", OPTIMIZERS["SGD"])
    run = trcomp.step(training.function())
    kept = []
    for _ in range(4):
        run(*training.batch())
        rt.sync()
        gradient = training.model[4].weight.grad  # type: ignore[index, union-attr]
        kept.append((gradient, gradient.detach().cpu()))
    for gradient, was in kept:
        torch.testing.assert_close(gradient.cpu(), was)


def test_tied_weights_stay_tied() -> None:
    def train(wrap: Callable[[Step], Step]) -> torch.Tensor:
        torch.manual_seed(0)
        encode, decode = nn.Linear(4, 4, bias=False).to("xla"), nn.Linear(4, 4).to("xla")
        decode.weight = encode.weight
        optimizer = torch.optim.Adam([*encode.parameters(), decode.bias], lr=0.1)

        @wrap
        def run(inputs: torch.Tensor) -> None:
            optimizer.zero_grad()
            decode(encode(inputs)).square().mean().backward()
            optimizer.step()

        for i in range(4):
            run(torch.full((2, 4), 1.0 + i).to("xla"))
            rt.sync()
        assert decode.weight is encode.weight
        return decode.weight.detach().cpu()

    torch.testing.assert_close(trained := train(trcomp.step), train(lambda f: f))
    assert trained.isfinite().all()


def test_two_optimizers_train_against_each_other() -> None:
    def train(wrap: Callable[[Step], Step]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        maker, judge = nn.Linear(2, 3).to("xla"), nn.Linear(3, 1).to("xla")
        makes = torch.optim.Adam(maker.parameters(), lr=0.01, betas=(0.0, 0.9))
        judges = torch.optim.Adam(judge.parameters(), lr=0.02, betas=(0.0, 0.9))

        @wrap
        def run(real: torch.Tensor) -> dict[str, torch.Tensor]:
            noise = torch.randn(4, 2, device="xla")
            judges.zero_grad()
            wrong = judge(maker(noise).detach()).mean() - judge(real).mean()
            wrong.backward()
            judges.step()
            makes.zero_grad()
            fooled = -judge(maker(noise)).mean()
            fooled.backward()
            makes.step()
            return {"judge": wrong.detach(), "maker": fooled.detach()}

        torch.manual_seed(3)
        made = []
        for _ in range(5):
            made += run(torch.ones(4, 3, device="xla")).values()
            rt.sync()
        return [*(t.cpu() for t in made), maker.weight.detach().cpu()]

    with Counted() as counted:
        got = train(trcomp.step)
    assert counted.captures == 1
    torch.testing.assert_close(got, train(lambda f: f))


def test_autocast_and_a_gradient_scaler() -> None:
    def train(wrap: Callable[[Step], Step]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(3, 2).to("xla")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scaler = torch.amp.GradScaler("xla", init_scale=1024.0, growth_interval=2)

        @wrap
        def run(inputs: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            with torch.autocast("xla", dtype=torch.float16):
                loss = model(inputs).float().square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        losses = []
        for i in range(7):
            huge = torch.inf if i == 4 else 1.0
            losses.append(run(torch.full((2, 3), huge).to("xla")))
            rt.sync()
        return [*(t.cpu() for t in losses), model.weight.detach().cpu(), scaler._scale.cpu()]  # type: ignore[union-attr]

    with Counted() as counted:
        got = train(trcomp.step)
    torch.testing.assert_close(got, train(lambda f: f), equal_nan=True)
    assert counted.replays >= 4
    assert counted.early_syncs == 0


def test_draws_are_those_of_recording_also_in_checkpoints() -> None:
    from torch.utils.checkpoint import checkpoint

    def train(wrap: Callable[[Step], Step]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = mlp(0.5).to("xla")

        @wrap
        def run(inputs: torch.Tensor) -> torch.Tensor:
            model.zero_grad()
            loss = checkpoint(model, inputs, use_reentrant=False).square().mean()
            loss.backward()
            return loss.detach() + torch.rand((), device="xla")

        made = [run(torch.ones(4, 6, device="xla")).cpu() for _ in range(4)]
        return [
            *made,
            *(p.grad.cpu() for p in model.parameters()),
            torch.rand(2, device="xla").cpu(),
        ]

    with Counted() as counted:
        got = train(trcomp.step)
    assert counted.replays == 3
    torch.testing.assert_close(got, train(lambda f: f))


def test_what_an_object_holds_from_call_to_call() -> None:
    class Mean:
        def __init__(self) -> None:
            self.total = torch.zeros((), device="xla")

        @trcomp.step
        def add(self, value: torch.Tensor) -> torch.Tensor:
            self.total = self.total + value.sum()
            return self.total * 2

    means = [Mean(), Mean()]
    with Counted() as counted:
        for i in range(4):
            for mean in means:
                doubled = mean.add(torch.full((2,), float(i), device="xla"))
        assert doubled.item() == 24
        means[0].total = torch.zeros((), device="xla")
        means[0].add(torch.ones(2, device="xla"))
    assert [mean.total.item() for mean in means] == [2, 12]
    assert counted.captures == 2


def test_an_exception_leaves_everything_as_it_was() -> None:
    training = Training("xla", OPTIMIZERS["AdamW"])
    model, optimizer = training.model, training.optimizer
    limit = [4]

    @trcomp.step
    def run(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        if len(inputs) > limit[0]:
            raise ValueError("too many")
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(3):
        run(*training.batch())
        rt.sync()
    weights = [p.detach().cpu() for p in model.parameters()]
    with pytest.raises(ValueError, match="too many"):
        run(*training.batch(5))
    torch.testing.assert_close([p.detach().cpu() for p in model.parameters()], weights)
    assert [s["step"].item() for s in optimizer.state.values()] == [3.0] * len(weights)
    run(*training.batch())
    assert [s["step"].item() for s in optimizer.state.values()] == [4.0] * len(weights)


def test_autograd_notices_that_a_replay_changed_what_it_saved() -> None:
    training = Training("xla", OPTIMIZERS["SGD"])
    run = trcomp.step(training.function())
    for _ in range(3):
        run(*training.batch())
    outside = training.model(training.batch()[0].requires_grad_()).sum()
    run(*training.batch())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outside.backward()


def test_the_loader_and_a_part_of_a_larger_tensor() -> None:
    @trcomp.step
    def double(value: torch.Tensor) -> torch.Tensor:
        return value * 2

    whole = torch.arange(12.0).to("xla")
    with Counted() as counted:
        for i in range(4):
            part = whole[i * 3 : i * 3 + 3]
            assert double(part).tolist() == [2.0 * n for n in range(i * 3, i * 3 + 3)]
    assert counted.captures <= 2


def test_an_argument_that_is_written_lies_anywhere() -> None:
    @trcomp.step
    def double(value: torch.Tensor) -> torch.Tensor:
        value.mul_(2)
        return value.sum()

    whole = torch.ones(6, device="xla")
    for i in range(4):
        given = torch.ones(3, device="xla")
        assert double(given).item() == 6
        assert given.tolist() == [2] * 3
        assert double(whole[3:]).item() == 3 * 2 ** (i + 1)
    assert whole.tolist() == [1] * 3 + [16] * 3


def test_an_argument_that_is_part_of_the_state() -> None:
    def train(wrap: Callable[[Step], Step]) -> list[float]:
        weight = torch.ones(3, device="xla")

        @wrap
        def add(value: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
            weight.add_(value)
            return (value * factor).sum()

        other = torch.full((3,), 2.0, device="xla")
        pairs = [(other, other.clone()), (other, weight), (weight, other), (weight, weight)]
        return [add(*pair).item() for pair in (*pairs, *pairs, *pairs)]

    assert train(trcomp.step) == train(lambda f: f)


def test_a_batch_in_a_user_dictionary(capsys: pytest.CaptureFixture[str]) -> None:
    class Batch(UserDict[str, Any]):
        """As a tokenizer makes it: a dictionary with more to it."""

        def __init__(self, data: dict[str, Any], source: str) -> None:
            super().__init__(data)
            self.source = source

    total = torch.zeros((), device="xla")

    @trcomp.step
    def train_step(batch: Batch, scale: float) -> None:
        assert batch.source == "here" and isinstance(batch, Batch)
        total.add_(batch["inputs"].sum() * scale + batch["labels"].sum())

    before = rt.metrics()
    for i in range(5):
        inputs, labels = torch.full((3,), float(i)).to("xla"), torch.ones(2).to("xla")
        train_step(Batch({"inputs": inputs, "labels": labels}, "here"), 2.0)
        rt.sync()
    assert total.item() == 2 * 3 * (0 + 1 + 2 + 3 + 4) + 2 * 5
    after = rt.metrics()
    assert after["captures"] - before["captures"] == 1
    assert after["replays"] - before["replays"] == 4
    train_step(Batch({"inputs": torch.ones(4).to("xla"), "labels": labels}, "here"), 2.0)
    assert "batch['inputs'] was float32[3] and is float32[4]" in capsys.readouterr().err


@dataclass
class Loss:
    value: torch.Tensor


def test_generated_code_is_not_the_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    model = mlp().to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @trcomp.step
    def step(inputs: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = Loss(model(inputs).square().mean())
        loss.value.backward()
        rt.optimizer_step(optimizer)
        return loss.value

    before = rt.metrics()["captures"]
    for _ in range(4):
        step(torch.ones(4, 6).to("xla"))
    assert rt.metrics()["captures"] == before + 1
    assert "not captured" not in capsys.readouterr().err


def test_further_forms_than_allowed_are_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    @trcomp.step(max_captures=2)
    def grow(value: torch.Tensor) -> torch.Tensor:
        return value + 1

    with Counted() as counted:
        for size in (1, 2, 3, 4, 5, 3, 2):
            assert grow(torch.zeros(size, device="xla")).tolist() == [1] * size
    assert counted.captures == 2
    assert "it has 2 captured forms, the most allowed" in said(capsys)
