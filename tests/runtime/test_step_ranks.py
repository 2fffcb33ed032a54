"""Captured steps of two ranks: their collectives lie in the replayed node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runtime.rank_scripts import run_ranks

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

SCRIPT = """
    import json

    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel

    import trcomp
    import trcomp.runtime as rt

    rank, world, device = rt.rank(), rt.world_size(), rt.device()
    torch.manual_seed(0)
    inputs, labels = torch.randn(8, 6), torch.randint(3, (8,))
    mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
    found = {"rank": rank}


    def train(kind):
        torch.manual_seed(1)
        layers = [torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)]
        model = torch.nn.Sequential(*layers).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        wrapped = DistributedDataParallel(model) if kind == "ddp" else model

        @trcomp.step
        def run(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(wrapped(x), y)
            loss.backward()
            if kind == "ddp":
                optimizer.step()
            else:
                rt.optimizer_step(optimizer)
            return rt.all_reduce("sum", loss.detach(), 1 / world)

        x, y = inputs[mine].to(device), labels[mine].to(device)
        for step in range(6):
            before = rt.metrics()
            loss = run(x, y)
            rt.sync()
        after = rt.metrics()
        names = ("recorded_nodes", "executions", "compiles", "early_syncs")
        counts = [after[k] - before[k] for k in names]
        weight = model[0].weight.detach().cpu().flatten().tolist()
        found[kind] = {"counts": counts, "weight": weight, "loss": loss.item()}


    train("optimizer_step")
    if world > 1:
        dist.init_process_group("xla", init_method="env://")
        train("ddp")
    print("FOUND " + json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict]]:
    made = {}
    for world in (1, 2):
        folder: Path = tmp_path_factory.mktemp(f"ranks-{world}")
        ended = run_ranks(SCRIPT, folder, world)
        assert [end.code for end in ended] == [0] * world, ended
        lines = [line for end in ended for line in end.text.splitlines() if "FOUND " in line]
        made[world] = [json.loads(line.split("FOUND ")[1]) for line in lines]
        for end in ended:
            print(end.text)
    return made


@pytest.mark.parametrize("kind", ["optimizer_step", "ddp"])
def test_two_ranks_train_as_one_on_the_whole_batch(found: dict[int, list[dict]], kind: str) -> None:
    (alone,) = found[1]
    for rank in found[2]:
        for name in ("weight", "loss"):
            expected = alone["optimizer_step"][name]
            assert rank[kind][name] == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("kind", ["optimizer_step", "ddp"])
def test_a_call_is_one_node_and_one_executable(found: dict[int, list[dict]], kind: str) -> None:
    for rank in found[2]:
        assert rank[kind]["counts"] == [1, 1, 0, 0]
