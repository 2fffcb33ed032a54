"""DistributedDataParallel on two ranks, against the same script over gloo on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime.ddp_script import CASES, STEPS
from tests.runtime.rank_scripts import run_ranks
from trcomp import flags

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
SCRIPT = f"""
    import sys, warnings

    sys.path.insert(0, {str(ROOT)!r})
    from tests.runtime.ddp_script import main

    main()
"""
RANKS = (0, 1)


def run(folder: Path, enabled: bool) -> list[dict[str, Any]]:
    for ended in run_ranks(SCRIPT, folder, 2, {"TRCOMP_ENABLED": str(int(enabled))}):
        assert ended.code == 0, ended.text
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in RANKS]


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run(tmp_path_factory.mktemp("device"), enabled=True)


@pytest.fixture(scope="module")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run(tmp_path_factory.mktemp("gloo"), enabled=False)


def assert_close(ours: Any, theirs: Any, tolerance: float) -> None:
    if theirs is None or ours is None:
        assert ours is theirs
        return
    torch.testing.assert_close(
        torch.tensor(ours), torch.tensor(theirs), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_gloo(device: Any, gloo: Any, name: str) -> None:
    # Half precision rounds what each backend sums in its own order.
    tolerance = 1e-3 if name == "half the bits" else 1e-5
    for rank in RANKS:
        ours, theirs = device[rank][name], gloo[rank][name]
        for what in ("losses", "gradients", "parameters", "buffers"):
            for mine, other in zip(ours[what], theirs[what], strict=True):
                assert_close(mine, other, tolerance)


@pytest.mark.parametrize("name", sorted(set(CASES) - {"uneven inputs", "heads by turns"}))
def test_compiles_are_flat_from_the_second_step(device: Any, name: str) -> None:
    for rank in RANKS:
        counts = device[rank][name]["compiles"]
        # torch chooses the buckets of a static graph anew a step later.
        settled = counts[2 if name == "static graph" else 1 :]
        assert len(set(settled)) == 1, counts


def test_a_step_is_one_graph(device: Any) -> None:
    for name in ("as it is", "many buckets", "no sync", "batch norm", "sync batch norm"):
        # New buckets are made once, at the second step.
        assert device[0][name]["early_syncs"] <= 1, name


def test_nothing_falls_back(device: Any) -> None:
    for rank in RANKS:
        assert not device[rank][list(CASES)[-1]]["fallbacks"]


def test_statistics_over_both_ranks_are_those_of_one_batch(device: Any) -> None:
    first, second = (device[rank]["sync batch norm"] for rank in RANKS)
    assert first["buffers"] == second["buffers"]
    losses = torch.tensor([first["losses"], second["losses"]]).mean(0)
    expected_losses, expected = one_batch()
    assert_close(losses.tolist(), expected_losses, 1e-5)
    for ours, theirs in zip(first["parameters"], expected, strict=True):
        assert_close(ours, theirs, 1e-5)


def one_batch() -> tuple[list[float], list[Any]]:
    """One process that has both ranks' batches."""
    from tests.runtime.ddp_script import Net, momentum

    torch.manual_seed(0)
    net = Net(True, lambda step: "ab")
    optimizer = momentum(net.parameters())
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(STEPS, 1, 2, 8, 20, generator=generator)
    labels = torch.randint(0, 4, (STEPS, 1, 2, 8), generator=generator)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        logits = net(inputs[step].reshape(16, 20))
        loss = torch.nn.functional.cross_entropy(logits, labels[step].reshape(16))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [parameter.tolist() for parameter in net.parameters()]


COMPILED = """
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("nccl")
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)

    def losses(around, within):
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 3)
        ).cuda()
        model = around(DistributedDataParallel(within(net), device_ids=[rank]))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        generator = torch.Generator().manual_seed(rank)
        seen = []
        for _ in range(4):
            inputs = torch.randn(4, 8, generator=generator).cuda()
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        return torch.tensor(seen)

    def unchanged(model):
        return model

    due = losses(unchanged, unchanged)
    torch.testing.assert_close(losses(torch.compile, unchanged), due)
    torch.testing.assert_close(losses(unchanged, torch.compile), due)
    dist.destroy_process_group()
"""


def test_torch_compile_around_it_and_within_it_gives_its_numbers(tmp_path: Path) -> None:
    for ended in run_ranks(COMPILED, tmp_path, 2, {flags.CUDA_TO_XLA.name: "1"}):
        assert ended.code == 0, ended.text
