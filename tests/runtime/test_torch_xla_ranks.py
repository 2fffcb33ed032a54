"""The torch_xla tree on two ranks: collectives over all of them and over groups, with gradients.

Everything but the graph itself holds in plain mode too, so the script runs once in each mode.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime.rank_scripts import run_ranks

pytestmark = pytest.mark.runtime

SCRIPT = """
    import json, os, sys
    import torch
    import trcomp.compat
    trcomp.compat.install()
    import torch_xla
    import torch_xla.core.functions as xf
    import torch_xla.core.xla_model as xm
    import torch_xla.distributed.xla_multiprocessing as xmp
    import torch_xla.runtime as xr
    import torch_xla.utils.serialization as xser

    found = {}


    def main(index, word):
        device, rank, world = torch_xla.device(), xr.global_ordinal(), xr.world_size()
        found.update(index=index, rank=rank, world=world, word=word)
        mine = torch.tensor([rank + 1.0, rank + 2.0], device=device)
        rows = torch.arange(8.0, device=device).view(4, 2) + 10 * rank
        apart, swapped = [[0], [1]], [[1, 0]]

        found["sum"] = xm.all_reduce(xm.REDUCE_SUM, mine, scale=0.5).tolist()
        found["own sum"] = xm.all_reduce(xm.REDUCE_SUM, mine, groups=apart).tolist()
        held = [mine.clone()]
        xm.all_reduce(xm.REDUCE_MAX, held, groups=apart)
        found["own max"] = held[0].tolist()
        found["gathered"] = xm.all_gather(mine).tolist()
        found["gathered columns"] = xm.all_gather(mine[:, None], dim=-1).tolist()
        found["gathered swapped"] = xm.all_gather(mine, groups=swapped).tolist()
        output = torch.zeros(4, device=device)
        assert xm.all_gather(mine, output=output) is output
        found["gathered into"] = output.tolist()
        many = xm.all_gather_bucketized([mine, rows], bucket_cap_mb=1)
        found["gathered many"] = [many[0].tolist(), list(many[1].shape)]
        shares = xm.reduce_scatter(xm.REDUCE_SUM, rows, 0.5, 0, world)
        found["scattered"] = shares.tolist()
        [share] = xm.reduce_scatter_bucketized(xm.REDUCE_MIN, [rows], 1.0, 1, world)
        found["scattered min"] = share.tolist()
        found["exchanged"] = xm.all_to_all(rows, 0, 1, world).tolist()
        found["permuted"] = xm.collective_permute(mine, [[0, 1], [1, 0]]).tolist()
        found["moved"] = xm.collective_permute(mine, [[0, 1]]).tolist()
        shared = [mine.clone()]
        xm.collective_broadcast(shared, root_ordinal=1)
        found["shared"] = shared[0].tolist()

        model = torch.nn.Linear(2, 1).to(device)
        torch.nn.init.constant_(model.weight, float(rank))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model.weight.grad = torch.full((1, 2), rank + 1.0, device=device)
        xm.optimizer_step(optimizer, groups=apart)
        found["own step"] = model.weight.tolist()
        xm.broadcast_master_param(model)
        model.weight.grad = torch.full((1, 2), rank + 1.0, device=device)
        xm.optimizer_step(optimizer, barrier=True)
        found["step"] = model.weight.tolist()

        for name in ("sum", "max"):
            leaf = mine.clone().requires_grad_()
            (xf.all_reduce(name, leaf) * torch.tensor([1.0, 10.0], device=device)).sum().backward()
            found[f"gradient of {name}"] = leaf.grad.tolist()
        leaf = mine.clone().requires_grad_()
        (xf.all_gather(leaf) * torch.arange(4.0, device=device)).sum().backward()
        found["gradient of gather"] = leaf.grad.tolist()
        column = torch.arange(6.0).view(3, 2)[:, rank : rank + 1].to(device)
        product = xf.distributed_mm(column, torch.eye(2, device=device))
        found["product"] = product.tolist()

        torch.manual_seed(0)
        batch = torch.randn(8, 3, 2)
        norm = xf.SyncBatchNorm(3).to(device)
        share = batch[4 * rank : 4 * rank + 4].to(device).requires_grad_()
        result = norm(share)
        (result * torch.arange(4 * 6.0, device=device).view(4, 3, 2)).sum().backward()
        torch.save(
            [t.detach().cpu() for t in (result, share.grad, norm.running_mean, norm.running_var)],
            f"norm-{rank}.pt",
        )

        found["only"] = xm.do_on_ordinals(lambda t: t.tolist(), (mine,), ordinals=(1,))
        met = [xm.rendezvous("a", b"x" * rank), xm.xla_rendezvous(b"y", tag="b")]
        found["met"] = [[part.decode() for part in parts] for parts in met]
        found["reduced"] = xm.mesh_reduce("c", {"rank": rank}, lambda parts: parts)
        xser.save({"mine": mine, "rank": rank}, "saved")
        xm.rendezvous("saved")
        loaded = xser.load("saved")
        found["loaded"] = [loaded["mine"].tolist(), loaded["rank"], loaded["mine"].device.type]
        order = xmp.MpSerialExecutor().run(lambda: rank)
        found["order"] = order
        try:
            xm.rendezvous("d", replicas=[0])
        except Exception as error:
            found["refused"] = str(error)
        open(f"found-{rank}.json", "w").write(json.dumps(found))


    if __name__ == "__main__":
        torch_xla.launch(main, args=("launched",), start_method="fork")
"""


@pytest.fixture(scope="module", params=["xla", "plain"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each of two ranks found out, and their folder."""
    folder = tmp_path_factory.mktemp(str(request.param))
    for ended in run_ranks(SCRIPT, folder, 2, {"TRCOMP_ENABLED": str(int(request.param == "xla"))}):
        assert ended.code == 0, ended.text
    ranks = [json.loads((folder / f"found-{rank}.json").read_text()) for rank in (0, 1)]
    return ranks, folder


SAME = {
    "world": 2,
    "word": "launched",
    "sum": [1.5, 2.5],
    "gathered": [1, 2, 2, 3],
    "gathered columns": [[1, 2], [2, 3]],
    "gathered swapped": [2, 3, 1, 2],
    "gathered into": [1, 2, 2, 3],
    "gathered many": [[1, 2, 2, 3], [8, 2]],
    "shared": [2, 3],
    "step": [[-2.5, -2.5]],
    "gradient of sum": [1, 10],
    "product": [[0, 1], [2, 3], [4, 5]],
    "met": [["", "x"], ["y", "y"]],
    "reduced": [{"rank": 0}, {"rank": 1}],
    "loaded": [[1, 2], 0, "cpu"],
}
EACH = {
    "index": [0, 1],
    "rank": [0, 1],
    "own sum": [[1, 2], [2, 3]],
    "own max": [[1, 2], [2, 3]],
    "scattered": [[[5, 6], [7, 8]], [[9, 10], [11, 12]]],
    "scattered min": [[[0], [2], [4], [6]], [[1], [3], [5], [7]]],
    "exchanged": [[[0, 1, 10, 11], [2, 3, 12, 13]], [[4, 5, 14, 15], [6, 7, 16, 17]]],
    "permuted": [[2, 3], [1, 2]],
    "moved": [[0, 0], [1, 2]],
    "own step": [[[-1, -1]], [[-1, -1]]],
    "gradient of max": [[0, 0], [1, 10]],
    "gradient of gather": [[0, 1], [2, 3]],
    "only": [None, [2, 3]],
    "order": [0, 1],
}


@pytest.mark.parametrize("name", sorted(SAME))
def test_both_ranks_get_the_same(found: Any, name: str) -> None:
    assert [rank[name] for rank in found[0]] == [SAME[name]] * 2


@pytest.mark.parametrize("name", sorted(EACH))
def test_each_rank_gets_its_own(found: Any, name: str) -> None:
    assert [rank[name] for rank in found[0]] == EACH[name]


def test_some_ranks_cannot_meet_without_the_others(found: Any) -> None:
    assert all("all 2 ranks meet" in rank["refused"] for rank in found[0])


def test_batch_norm_over_both_ranks_equals_torchs_over_the_whole_batch(found: Any) -> None:
    folder: Path = found[1]
    torch.manual_seed(0)
    batch = torch.randn(8, 3, 2, requires_grad=True)
    norm = torch.nn.BatchNorm1d(3)
    factors = torch.arange(4 * 6.0).view(4, 3, 2)
    result = norm(batch)
    (result * torch.cat([factors, factors])).sum().backward()
    assert batch.grad is not None
    for rank in (0, 1):
        part = slice(4 * rank, 4 * rank + 4)
        expected = (result[part], batch.grad[part], norm.running_mean, norm.running_var)
        for got, wanted in zip(torch.load(folder / f"norm-{rank}.pt"), expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
