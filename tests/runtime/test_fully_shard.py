"""FSDP2, DTensor and tensor parallelism on two ranks, over meshes of cuda and xla, against gloo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime.rank_scripts import run_ranks

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

SCRIPT = """
    import json
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    import trcomp.runtime as rt

    device = "{device}"
    if device == "cuda":
        from trcomp.compat import cuda

        cuda.install()
    dist.init_process_group({{"cuda": "nccl", "xla": "xla", "cpu": "gloo"}}[device])
    rank = dist.get_rank()
    mesh = init_device_mesh(device, (2,))
    shared = distribute_tensor(torch.arange(8.0).reshape(4, 2).to(device), mesh, [Shard(0)])
    doubled = shared * 2
    found = {{
        "dtensor": doubled.full_tensor().tolist(),
        "sum": doubled.sum().full_tensor().item(),
        "other way": doubled.redistribute(mesh, [Shard(1)]).to_local().tolist(),
    }}
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 5)
    ).to(device)
    for part in (model[0], model[2], model):
        fully_shard(part, **({{}} if device == "cuda" else {{"mesh": mesh}}))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    inputs, labels = torch.randn(2, 8, 20), torch.randint(0, 5, (2, 8))
    found["losses"], found["compiles"], early = [], [], rt.metrics()["early_syncs"]
    for step in range(4):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(
            model(inputs[rank].to(device)), labels[rank].to(device)
        )
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rt.sync()
        found["losses"].append(loss.item())
        found["compiles"].append(rt.metrics()["compiles"])
    found["early"] = rt.metrics()["early_syncs"] - early
    found["norm"] = norm.full_tensor().item()
    found["weights"] = [parameter.full_tensor().tolist() for parameter in model.parameters()]
    split = torch.nn.Sequential(
        torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 5)
    ).to(device)
    parallelize_module(split, mesh, {{"0": ColwiseParallel(), "2": RowwiseParallel()}})
    split(inputs[0].to(device)).square().sum().backward()
    found["split"] = [parameter.grad.full_tensor().tolist() for parameter in split.parameters()]
    found["fallbacks"] = dict(rt.metrics()["fallbacks"])
    open(f"found-{{rank}}.json", "w").write(json.dumps(found))
    dist.destroy_process_group()
"""
RANKS = (0, 1)


def run(folder: Path, device: str) -> list[dict[str, Any]]:
    script = SCRIPT.format(device=device)
    for ended in run_ranks(script, folder, 2, {"TRCOMP_ENABLED": str(int(device != "cpu"))}):
        assert ended.code == 0, ended.text
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in RANKS]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run(tmp_path_factory.mktemp("cpu"), "cpu")


@pytest.fixture(scope="module", params=["cuda", "xla"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run(tmp_path_factory.mktemp(request.param), request.param)


NAMES = ["dtensor", "sum", "other way", "losses", "norm", "weights", "split"]


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_those_of_gloo(found: Any, plain: Any, name: str) -> None:
    for ours, theirs in zip(found, plain, strict=True):
        both = (ours[name], theirs[name])
        pairs = zip(*both, strict=True) if isinstance(both[0], list) else [both]
        for mine, other in pairs:
            torch.testing.assert_close(
                torch.tensor(mine), torch.tensor(other), rtol=1e-5, atol=1e-5
            )


def test_a_step_with_its_gathers_and_scatters_is_one_graph(found: Any) -> None:
    for ours in found:
        assert len(set(ours["compiles"][1:])) == 1, ours["compiles"]
        assert (ours["early"], ours["fallbacks"]) == (0, {})
