"""The same script without XLA: the API is the same, the device is torch's own."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch

import trcomp.runtime as rt
from tests.runtime.rank_scripts import run_script
from trcomp.runtime import closures, plain, xla
from trcomp.runtime.metrics import counters

pytestmark = pytest.mark.runtime


def test_both_modes_have_the_same_names() -> None:
    assert sorted(plain.__all__) == sorted(xla.__all__) == sorted(rt.__all__)


@pytest.mark.parametrize("name", sorted(xla.__all__))
def test_both_modes_take_the_same_arguments(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(module, name)) for module in (plain, xla))
    assert list(ours.parameters) == list(theirs.parameters)
    assert [p.default for p in ours.parameters.values()] == [
        p.default for p in theirs.parameters.values()
    ]


def test_the_device_is_the_cpu_where_there_is_no_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert plain.device() == torch.device("cpu")
    assert plain.device_count() == 1


def test_a_gpu_is_chosen_by_local_rank_among_those_that_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    for count, index in ((4, 3), (1, 0)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        assert plain.device() == torch.device("cuda", index)
    assert chosen == [torch.device("cuda", 3), torch.device("cuda", 0)]


def test_sync_counts_steps_and_runs_closures() -> None:
    steps, marks, calls = counters.steps, len(counters.step_marks), []
    closures.add(calls.append, ("first",))
    closures.add(calls.append, ("second",))
    plain.sync()
    plain.sync()
    assert calls == ["first", "second"]
    assert counters.steps - steps == len(counters.step_marks) - marks == 2


def test_settling_is_no_step() -> None:
    steps, calls = counters.steps, []
    closures.add(calls.append, (1,))
    plain.settle()
    assert calls == [1]
    assert counters.steps == steps


def test_a_closure_that_raises_reaches_the_caller_once() -> None:
    closures.add(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        plain.sync()
    plain.sync()


def test_random_numbers_can_be_repeated() -> None:
    state = plain.take_rng_state()
    first = torch.rand(3)
    plain.manual_seed(state)
    assert torch.equal(torch.rand(3), first)


def test_an_optimizer_step_returns_the_closures_loss() -> None:
    weight = torch.nn.Parameter(torch.ones(1))

    def loss() -> torch.Tensor:
        weight.grad = torch.ones(1)
        return torch.tensor(5.0)

    optimizer = torch.optim.SGD([weight], lr=0.5)
    steps = counters.steps
    assert plain.optimizer_step(optimizer, True, {"closure": loss}).item() == 5
    assert weight.item() == 0.5
    assert counters.steps == steps + 1


def test_a_script_runs_without_jax_and_without_the_xla_device(tmp_path: Path) -> None:
    script = """
    import sys
    import torch
    import torch_xla.core.xla_model as xm
    import torch_xla.distributed.parallel_loader as pl

    device = xm.xla_device()
    model = torch.nn.Linear(2, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in pl.MpDeviceLoader([torch.ones(3, 2)] * 2, device):
        model(batch).sum().backward()
        xm.optimizer_step(optimizer)
    xm.save(model.state_dict(), "model.pt")
    print(device, "jax" in sys.modules, hasattr(torch, "xla"))
    # No module of the runtime takes the place of a name of the API.
    from trcomp.runtime import report
    report.summarize()
    assert xm.xla_device() == device
    xm.mark_step()
    """
    ended = run_script(script, tmp_path, {"TRCOMP_ENABLED": "0", "TRCOMP_WORKER": "1"})
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split()[1:] == ["False", "False"]
    assert set(torch.load(tmp_path / "model.pt", weights_only=True)) == {"weight", "bias"}
