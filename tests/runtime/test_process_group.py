"""torch.distributed on the device: three ranks, and how ranks come to be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
import torch.distributed as dist

import trcomp.runtime as rt
from tests.runtime.rank_scripts import run_ranks, run_script
from trcomp.errors import DeviceError, UnsupportedError
from trcomp.runtime import reductions

pytestmark = pytest.mark.runtime

ROOT = Path(__file__).parents[2]
SCRIPT = f"""
    import sys

    sys.path.insert(0, {str(ROOT)!r})
    from tests.runtime.collectives_script import main

    main()
"""
RANKS = (0, 1, 2)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    for ended in run_ranks(SCRIPT, folder, len(RANKS)):
        assert ended.code == 0, ended.text
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in RANKS]


ALIKE = {
    "SUM": [6, 6],
    "AVG": [2, 2],
    "MIN": [1, 0],
    "MAX": [3, 4],
    "PRODUCT": [6, 0],
    "BAND": [4, 8],
    "BOR": [7, 8],
    "BXOR": [7, 8],
    "bools": [True, False],
    "bfloat16": [4.5],
    "broadcast": "[nan, 7.0]",
    "all_gather": [[0, 5], [1, 5], [2, 5]],
    "uneven all_gather": [[0], [1, 1], [2, 2, 2]],
    "all_gather_single": [[0, 5], [1, 5], [2, 5]],
    "handle": [True, True, [6]],
    "coalesced": [[3], [3, 6]],
    "backend": ["nccl", True],
    "gloo": [[[3]], "gloo"],
    "cpu:gloo,cuda:nccl": [[[3], [3]], "cpu:gloo,cuda:nccl"],
    "cpu:gloo,xla:xla": [[[3], [3]], "cpu:gloo,xla:xla"],
    "executions": 0,
    "fallbacks": {},
}


@pytest.mark.parametrize("name", ALIKE)
def test_every_rank_gets_the_same(found: Any, name: str) -> None:
    assert [found[rank][name] for rank in RANKS] == [ALIKE[name]] * 3


BY_RANK: dict[str, list[Any]] = {
    "a column": [[[0, 3, 0]] * 2, [[1, 3, 1]] * 2, [[2, 3, 2]] * 2],
    "reduce": [[1], [6], [3]],
    "reduce_scatter_single": [[3, 6], [9, 12], [15, 18]],
    "reduce_scatter": [[3, 0], [3, 3], [3, 6]],
    "uneven reduce_scatter": [[3], [3, 3], [3, 3, 3]],
    "gather": [None, None, [[0], [1], [2]]],
    "scatter": [[10], [11], [12]],
    "all_to_all": [[[0], [10], [20]], [[1], [11], [21]], [[2], [12], [22]]],
    "all_to_all_single": [[0, 10, 20], [1, 11, 21], [2, 12, 22]],
    "uneven all_to_all_single": [[], [0, 1, 2], [0, 0, 1, 1, 2, 2]],
    "send and recv": [[1, 2], [0, 0], [1, 2]],
    "around": [[2], [0], [1]],
    "pair": [[[3], [0, 1], 0], [[3], [0, 1], 1], None],
    "outer": [[[4], [0, 2], 0], None, [[4], [0, 2], 1]],
    "pair's": [[[0, 1], [1], [1]], [[10, 11], [4], [1]], None],
    "last": [[3], None, None],
}


@pytest.mark.parametrize("name", BY_RANK)
def test_each_rank_gets_its_own(found: Any, name: str) -> None:
    assert [found[rank].get(name) for rank in RANKS] == BY_RANK[name]


def test_objects_host_tensors_and_barriers_travel_on_the_host(found: Any) -> None:
    everyone = [{"rank": rank} for rank in RANKS]
    assert [found[rank]["objects"] for rank in RANKS] == [
        [everyone, ["from 1"], [0, 1, 2] if rank == 0 else None, [10 * (rank + 1)], [3, 3]]
        for rank in RANKS
    ]


def test_a_rank_may_read_early(found: Any) -> None:
    weight, expected = torch.ones(4), []
    for step in range(3):
        expected.append((weight * torch.arange(4)).sum().item() * (1 + step))
        weight -= 0.1 * torch.arange(4) * (1 + step)
        expected.append(weight.sum().item())
    values, ours = found[0]["early reads"]
    torch.testing.assert_close(torch.tensor(values), torch.tensor(expected))
    for rank in RANKS:
        assert found[rank]["early reads"][1] == ours
    torch.testing.assert_close(torch.tensor(ours), weight)


# How ranks come to be.

STARTED = """
    import sys
    import torch, torch.distributed as dist
    import trcomp.runtime as rt
    {before}
    def main(*rank):
        dist.init_process_group("xla", {how})
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1).to("xla"))
        model(torch.full((1, 1), rt.rank() + 1.0, device="xla")).sum().backward()
        ours = [rt.rank(), rt.local_rank(), rt.world_size(), model.module.weight.grad.item()]
        # One write: torchrun's ranks are unbuffered and share one stream.
        print("ours {{}} {{}} {{}} {{}}\\n".format(*ours), end="", flush=True)
        dist.destroy_process_group()

    if __name__ == "__main__":
        {start}
"""


def told(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if line.startswith("ours"))


@pytest.mark.slow
@pytest.mark.parametrize("before", ["pass", "(torch.ones(2, device='xla') + 1).tolist()"])
def test_under_torchrun(tmp_path: Path, before: str) -> None:
    path = tmp_path / "script.py"
    path.write_text(dedent(STARTED).format(before=before, how="", start="main()"))
    ended = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", path],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert told(ended.stdout) == ["ours 0 0 2 1.5", "ours 1 1 2 1.5"], ended.stderr


@pytest.mark.slow
def test_spawned_by_the_script_itself(tmp_path: Path) -> None:
    how = f"init_method='file://{tmp_path}/store', rank=rank[0], world_size=2"
    start = "torch.multiprocessing.spawn(main, nprocs=2)"
    script = dedent(STARTED).format(before="pass", how=how, start=start)
    ended = run_script(script, tmp_path)
    assert told(ended.stdout) == ["ours 0 0 2 1.5", "ours 1 1 2 1.5"], ended.stderr


@pytest.mark.slow
def test_by_the_meeting_that_the_ranks_have_had(tmp_path: Path) -> None:
    script = dedent(STARTED).format(before="pass", how="init_method='xla://'", start="main()")
    both = run_ranks(script, tmp_path)
    assert [told(ended.text) for ended in both] == [["ours 0 0 2 1.5"], ["ours 1 1 2 1.5"]]


# One rank alone.


@pytest.fixture
def alone(tmp_path: Path) -> Any:
    dist.init_process_group("xla", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_one_rank_reduces_and_gathers_its_own(alone: None) -> None:
    tensor, whole = torch.ones(2, device=rt.device()), torch.empty(2, device=rt.device())
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    dist.all_gather_single(whole, tensor)
    dist.barrier()
    assert (tensor.tolist(), whole.tolist(), dist.get_backend()) == ([1, 1], [1, 1], "xla")


def test_a_reduction_that_there_is_not_is_refused(alone: None) -> None:
    premultiplied = dist._make_nccl_premul_sum(2.0)
    with pytest.raises(UnsupportedError, match="SUM, AVG, PRODUCT"):
        dist.all_reduce(torch.ones(1, device=rt.device()), premultiplied)


def test_a_process_that_has_used_the_device_alone_becomes_no_rank(tmp_path: Path) -> None:
    torch.ones(1, device=rt.device()).tolist()
    store = f"file://{tmp_path}/store"
    with pytest.raises(DeviceError, match="Call init_process_group before"):
        dist.init_process_group("xla", init_method=store, rank=0, world_size=2)


def test_a_rank_that_contradicts_the_environment_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    store = f"file://{tmp_path}/store"
    with pytest.raises(DeviceError, match="rank 0 of 2 already"):
        dist.init_process_group("xla", init_method=store, rank=0, world_size=1)


def test_a_storage_that_is_freed_reads_as_zeros_until_it_is_filled() -> None:
    tensor = torch.ones(3, device=rt.device())
    seen = tensor + 1
    tensor.untyped_storage().resize_(0)
    rt.sync()
    assert tensor.tolist() == [0, 0, 0]
    tensor.copy_(seen)
    assert tensor.tolist() == [2, 2, 2]
    with pytest.raises(UnsupportedError, match="allowed: 0"):
        tensor.untyped_storage().resize_(100)


# Which ranks reduce together.


@pytest.mark.parametrize(
    ("group", "world", "expected"),
    [
        ([0, 1], 4, ((0, 1), (2, 3))),
        ([1, 3], 4, ((0, 2), (1, 3))),
        ([0, 1], 3, ((0, 1), (2,))),
        ([2], 3, ((0,), (1,), (2,))),
        ([0, 1, 2], 3, None),
    ],
)
def test_the_ranks_outside_a_group_make_groups_of_its_size_where_they_can(
    group: list[int], world: int, expected: Any
) -> None:
    assert reductions.around(group, world) == expected
