"""What training on several ranks is known to get wrong: means, accumulation, clipping, uneven data.

The cases come from public reports against PyTorch/XLA and its users' projects. Two ranks run one
script; what they should find is computed here, by PyTorch on the whole batch.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from tests.runtime.rank_scripts import run_ranks

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

COMMON = """
    import torch


    def made(device):
        torch.manual_seed(0)
        layers = torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)
        return torch.nn.Sequential(*layers).to(device)


    def data():
        return torch.randn(16, 3, generator=torch.Generator().manual_seed(1)) * 3
"""

SCRIPT = """
    import json, os
    from pathlib import Path

    import trcomp.runtime as rt
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
    from trcomp.runtime.sync import observers

    found = {"world before the device starts": rt.world_size()}
    if (child := os.fork()) == 0:
        os._exit(rt.world_size() * 10 + rt.rank())
    found["seen by a fork"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    rank, device = rt.rank(), rt.device()
    mine = data()[rank::2]
    collectives = []
    observers.append(lambda graph: collectives.append(len(list(graph.collectives()))))


    def weights(model):
        return [parameter.detach().flatten().tolist() for parameter in model.parameters()]


    # One number a rank: the gradients' mean, not their sum.
    number = torch.nn.Parameter(torch.zeros((), device=device))
    (number * (rank + 1)).backward()
    rt.optimizer_step(torch.optim.SGD([number], lr=1.0))
    found["mean"] = number.item()

    # In groups of one rank each the mean is the rank's own.
    import torch_xla.core.xla_model as xm
    own = torch.nn.Parameter(torch.zeros((), device=device))
    (own * (rank + 1)).backward()
    xm.optimizer_step(torch.optim.SGD([own], lr=1.0), groups=[[0], [1]])
    found["mean of one"] = own.item()

    # A closure's gradients are computed within the step, and reduced there.
    def closure():
        number.grad = None
        loss = number * (rank + 1)
        loss.backward()
        return loss.detach()

    for step in rt.optimizer_step, xm.optimizer_step:
        number.data.zero_()
        step(torch.optim.SGD([number], lr=1.0), optimizer_args={"closure": closure})
        found.setdefault("mean of a closure", []).append(number.item())

    # Four micro-batches a step, clipped: one reduction a step.
    model = made(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rt.sync()
    collectives.clear()
    for _ in range(3):
        for part in mine.chunk(4):
            (model(part.to(device)).square().mean() / 4).backward()
        rt.reduce_gradients(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        rt.sync()
    found["collectives of a step"] = list(collectives)
    found["accumulated"] = weights(model)

    # Half precision: reduce, unscale, clip, step. At step 2 one rank alone overflows.
    model = made(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("xla", init_scale=8.0)
    early = rt.metrics()["early_syncs"]
    for step in range(4):
        factor = float("inf") if step == 2 and rank == 1 else 1.0
        loss = model(mine.to(device)).square().mean() * factor
        scaler.scale(loss).backward()
        rt.reduce_gradients(optimizer)
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        rt.sync()
    found["early syncs of scaling"] = rt.metrics()["early_syncs"] - early
    found["scaled"] = weights(model)
    found["scale"] = scaler.get_scale()

    # The same reduction again and again, other numbers.
    compiles = []
    for i in range(6):
        total = rt.all_reduce("sum", torch.full((3,), float(i)).to(device))
        rt.sync()
        compiles.append(rt.metrics()["compiles"])
    found["last total"] = total.tolist()
    found["compiles of a reduction"] = compiles[-1] - compiles[0]

    torch.distributed.init_process_group("xla", init_method="xla://")
    compiles = []
    for i in range(6):
        total = torch.full((3,), float(i)).to(device)
        torch.distributed.all_reduce(total)
        rt.sync()
        compiles.append(rt.metrics()["compiles"])
    found["last total of torch's"] = total.tolist()
    found["compiles of torch's reduction"] = compiles[-1] - compiles[0]

    # Payloads of several lengths.
    before = rt.metrics()["compiles"]
    for length in (0, 1, 1000):
        parts = rt.rendezvous("lengths", bytes(length * (rank + 1)))
        found[f"payloads of {length}"] = [len(part) for part in parts]
    found["compiles of payloads"] = rt.metrics()["compiles"] - before

    # 11 samples among 2 ranks, 4 a batch, 3 epochs, a file by one rank alone after each.
    dataset = TensorDataset(torch.arange(11.0).view(11, 1).expand(11, 3))
    sampler = DistributedSampler(dataset, 2, rank, shuffle=True)
    loader = rt.DeviceLoader(DataLoader(dataset, batch_size=4, sampler=sampler))
    model = made(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    steps, seen, compiles = [], [], []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        steps.append(0)
        for (inputs,) in loader:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            rt.optimizer_step(optimizer)
            steps[-1] += 1
            seen += inputs[:, 0].tolist() if epoch == 0 else []
        rt.settle()
        if rank == 0:
            torch.save(model.state_dict(), f"epoch-{epoch}.pt")
        compiles.append(rt.metrics()["compiles"])
    rt.rendezvous("saved")
    kept = torch.load("epoch-2.pt", weights_only=True)
    found["file is the model"] = all(
        torch.equal(kept[name].cpu(), held.cpu()) for name, held in model.state_dict().items()
    )
    found["steps"], found["seen"] = steps, seen
    found["compiles of later epochs"] = compiles[-1] - compiles[0]
    Path(f"found-{rank}.json").write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks found."""
    folder = tmp_path_factory.mktemp("ranks")
    for ended in run_ranks(COMMON + SCRIPT, folder):
        assert ended.code == 0, ended.text
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def alone() -> Any:
    """The script's `made` and `data`."""
    names: dict[str, Any] = {}
    exec("\n".join(line[4:] for line in COMMON.splitlines()), names)
    return names


def _trained(names: Any, steps: int) -> list[list[float]]:
    """The weights after some clipped steps on the whole batch, on the CPU."""
    model = names["made"]("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(names["data"]()).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().flatten().tolist() for parameter in model.parameters()]


def _assert_near(got: Any, due: Any) -> None:
    for left, right in zip(got, due, strict=True):
        assert left == pytest.approx(right, rel=1e-4, abs=1e-6)


def test_the_number_of_ranks_is_known_before_the_device_starts_and_in_a_fork(found: Any) -> None:
    assert [each["world before the device starts"] for each in found] == [2, 2]
    assert [each["seen by a fork"] for each in found] == [20, 21]


def test_gradients_are_averaged_not_summed(found: Any) -> None:
    assert [each["mean"] for each in found] == [-1.5, -1.5]
    assert [each["mean of one"] for each in found] == [-1, -2]


def test_gradients_of_a_closure_are_averaged_too(found: Any) -> None:
    assert [each["mean of a closure"] for each in found] == [[-1.5, -1.5]] * 2


def test_accumulated_gradients_are_those_of_the_big_batch_reduced_once(
    found: Any, alone: Any
) -> None:
    due = _trained(alone, 3)
    for each in found:
        assert each["collectives of a step"] == [1, 1, 1]
        _assert_near(each["accumulated"], due)


def test_clipping_sees_reduced_and_unscaled_gradients_and_all_ranks_skip_an_overflow(
    found: Any, alone: Any
) -> None:
    due = _trained(alone, 3)  # of four steps one is skipped
    for each in found:
        _assert_near(each["scaled"], due)
        assert each["scale"] == 4
        assert each["early syncs of scaling"] == 0


def test_a_reduction_that_is_called_again_compiles_once(found: Any) -> None:
    for each in found:
        assert each["last total"] == [10, 10, 10]
        assert each["compiles of a reduction"] == 0
        assert each["last total of torch's"] == [10, 10, 10]
        assert each["compiles of torch's reduction"] == 0


def test_payloads_of_any_length_are_exchanged_and_compile_nothing(found: Any) -> None:
    for each in found:
        for length in (0, 1, 1000):
            assert each[f"payloads of {length}"] == [length, 2 * length]
        assert each["compiles of payloads"] == 0


def test_ranks_make_equally_many_steps_and_an_uneven_last_batch_compiles_once(found: Any) -> None:
    for each in found:
        assert each["steps"] == [2, 2, 2]
        assert each["compiles of later epochs"] <= 1  # the second epoch's first step has gradients
    seen = sorted(value for each in found for value in each["seen"])
    assert set(seen) == set(map(float, range(11))) and len(seen) == 12


def test_one_rank_alone_may_save(found: Any) -> None:
    assert [each["file is the model"] for each in found] == [True, True]
