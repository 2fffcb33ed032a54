"""Two ranks on this machine: collectives, averaged gradients, meeting, ending well and badly.

Everything but the graph itself holds in plain mode too, so the script runs once in each mode.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import trcomp.runtime as rt
from tests.runtime.rank_scripts import found_by_ranks, run_ranks, start_ranks, wait_for
from trcomp import flags
from trcomp.errors import DeviceError, UnsupportedError
from trcomp.runtime import distributed
from trcomp.runtime.buckets import plan_buckets

pytestmark = pytest.mark.runtime

SCRIPT = """
    import json, sys
    from pathlib import Path

    import torch
    import trcomp.runtime as rt

    rank, world, device = rt.rank(), rt.world_size(), rt.device()
    found = {"rank": rank, "local_rank": rt.local_rank(), "world": world}


    def held(*values, dtype=torch.float32):
        return torch.tensor(values, dtype=dtype, device=device)


    mine = held(rank + 1.0, rank + 2.0)
    for name in ("sum", "mul", "min", "max"):
        found[name] = rt.all_reduce(name, mine).tolist()
    bits = held(5 + rank, 8, dtype=torch.int64)
    for name in ("and", "or", "sum"):
        found[f"int {name}"] = rt.all_reduce(name, bits).tolist()
    found["unchanged"] = mine.tolist()
    found["scaled"] = rt.all_reduce("sum", mine, scale=0.5).tolist()
    one_group = [list(range(world))]
    found["one group"] = rt.all_reduce("sum", mine, groups=one_group).tolist()
    found["gathered alone"] = rt.all_gather(mine, groups=[[r] for r in range(world)]).tolist()
    found["alone"] = rt.all_reduce("sum", mine, groups=[[r] for r in range(world)]).tolist()

    several = [held(rank + 1.0), held(rank, 2, dtype=torch.int32)]
    table = torch.full((2, 3), float(rank), device=device)
    found["in place"] = rt.all_reduce("sum", [*several, table[:, 1]])
    found["several"] = [tensor.tolist() for tensor in several]
    found["table"] = table.tolist()

    found["gathered"] = rt.all_gather(held(rank, rank + 10.0)).tolist()
    found["gathered rows"] = rt.all_gather(held(rank, 5.0)[:, None], dim=1).tolist()
    shared = [held(float("nan") if rank == 0 else 7.0), held(bool(rank), dtype=torch.bool)]
    rt.broadcast(shared, root=1)
    found["shared"] = [tensor.tolist() for tensor in shared]

    found["met"] = [part.decode() for part in rt.rendezvous("a", f"from {rank}".encode())]
    found["met again"] = [len(part) for part in rt.rendezvous("a")]

    # Two ranks with half the batch each, against one rank with all of it.
    torch.manual_seed(0)
    inputs, targets = torch.randn(8, 300), torch.randint(0, 4, (8,))
    model = torch.nn.Sequential(
        torch.nn.Linear(300, 1000), torch.nn.Tanh(), torch.nn.Linear(1000, 4)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    share = slice(rank * 4, rank * 4 + 4) if world == 2 else slice(None)
    losses = []
    for images, labels in rt.DeviceLoader([(inputs[share], targets[share])] * 5):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        rt.optimizer_step(optimizer)
        losses.append(loss.detach())
    rt.settle()
    found["losses"] = [loss.item() for loss in losses]
    found["weights"] = [parameter.flatten()[:50].tolist() for parameter in model.parameters()]
    found["metrics"] = rt.metrics()
    found["jax"] = "jax" in sys.modules
    Path(f"found-{world}-{rank}.json").write_text(json.dumps(found))
"""


@pytest.fixture(scope="module", params=["xla", "plain"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def found(mode: str, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], Any]:
    """What each rank of a world of two, and the only rank of a world of one, found out."""
    folder = tmp_path_factory.mktemp(mode)
    # Buckets of 1 MiB: the model's gradients take several.
    environ = {"TRCOMP_ENABLED": str(int(mode == "xla")), "TRCOMP_BUCKET_MB": "1"}
    for num_ranks in (2, 1):
        for ended in run_ranks(SCRIPT, folder, num_ranks, environ):
            assert ended.code == 0, ended.text
    places = [(2, 0), (2, 1), (1, 0)]
    return {
        place: json.loads((folder / "found-{}-{}.json".format(*place)).read_text())
        for place in places
    }


def both(found: dict[tuple[int, int], Any], name: str) -> Any:
    """What both ranks of a world of two found alike."""
    assert found[2, 0][name] == found[2, 1][name], name
    return found[2, 0][name]


def test_each_rank_knows_its_place(found: Any) -> None:
    assert [
        (found[2, r]["rank"], found[2, r]["local_rank"], found[2, r]["world"]) for r in (0, 1)
    ] == [
        (0, 0, 2),
        (1, 1, 2),
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sum", [3, 5]),
        ("mul", [2, 6]),
        ("min", [1, 2]),
        ("max", [2, 3]),
        ("int and", [4, 8]),
        ("int or", [7, 8]),
        ("int sum", [11, 16]),
        ("scaled", [1.5, 2.5]),
        ("one group", [3, 5]),
        ("gathered", [0, 10, 1, 11]),
        ("gathered rows", [[0, 1], [5, 5]]),
        ("shared", [[7], [True]]),
        ("met", ["from 0", "from 1"]),
        ("met again", [0, 0]),
    ],
)
def test_collectives_agree_on_every_rank(found: Any, name: str, expected: Any) -> None:
    assert both(found, name) == expected


def test_one_tensor_gives_a_new_one_and_a_list_is_changed_in_place(found: Any) -> None:
    assert [found[2, rank]["unchanged"] for rank in (0, 1)] == [[1, 2], [2, 3]]
    assert both(found, "in place") is None
    assert both(found, "several") == [[3], [1, 4]]


def test_a_view_in_the_list_changes_its_part_of_the_base_alone(found: Any) -> None:
    assert [found[2, rank]["table"] for rank in (0, 1)] == [[[0, 1, 0]] * 2, [[1, 1, 1]] * 2]


def test_alone_collectives_are_the_identity(found: Any) -> None:
    alone = found[1, 0]
    assert alone["sum"] == alone["max"] == [1, 2]
    assert alone["scaled"] == [0.5, 1]
    assert alone["met"] == ["from 0"]


def test_two_ranks_at_half_the_batch_equal_one_at_all_of_it(found: Any) -> None:
    weights, alone = both(found, "weights"), found[1, 0]["weights"]
    for ours, theirs in zip(weights, alone, strict=True):
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-5, atol=1e-7)
    mean = torch.tensor([found[2, 0]["losses"], found[2, 1]["losses"]]).mean(0)
    torch.testing.assert_close(mean, torch.tensor(found[1, 0]["losses"]), rtol=1e-5, atol=0)
    assert found[2, 0]["losses"] != found[2, 1]["losses"]


def test_steps_and_samples_are_counted(found: Any) -> None:
    assert found[2, 0]["metrics"]["samples"] == 20
    assert found[1, 0]["metrics"]["samples"] == 40
    assert found[2, 0]["metrics"]["steps"] >= 5


def test_plain_mode_never_imports_jax(found: Any, mode: str) -> None:
    assert both(found, "jax") is (mode == "xla")


# Ends.

FAILS = """
    import sys
    import torch
    import trcomp.runtime as rt

    x = torch.ones(2, device=rt.device())
    rt.all_reduce("sum", x).tolist()
    print("ready", flush=True)
    if rt.rank() == {rank}:
        {how}
    rt.all_reduce("sum", x).tolist()
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_raises_ends_at_once_and_its_peer_says_why(tmp_path: Path, rank: int) -> None:
    """Rank 0 too, which serves the coordinator: JAX would abort its peers with a stack of C++."""
    start = time.monotonic()
    script = FAILS.format(rank=rank, how="raise ValueError('bad')")
    ended = run_ranks(script, tmp_path)
    failed, peer = ended[rank], ended[1 - rank]
    assert failed.code == 1
    assert failed.text.rstrip().endswith("ValueError: bad")
    assert peer.code == 1
    assert f"Rank {1 - rank} ends, since rank {rank} has failed: ValueError: bad" in peer.text
    assert "script.py" in peer.text and "C++" not in peer.text
    assert time.monotonic() - start < 60


def test_a_failure_is_passed_on_to_all_ranks(tmp_path: Path) -> None:
    """Each tells eight others, so that thousands hear of it at once."""
    script = FAILS.format(rank=3, how="raise ValueError('bad')")
    ended = run_ranks(script, tmp_path, 12)
    del ended[3]
    for peer in ended:
        assert "since rank 3 has failed: ValueError: bad" in peer.text


def test_ranks_that_reduce_different_things_are_told_so(tmp_path: Path) -> None:
    script = """
    import torch
    import trcomp.runtime as rt

    first = rt.all_reduce("sum", torch.ones(3, device=rt.device()))
    print(first.tolist(), flush=True)
    values = torch.ones(6, device=rt.device()) * 2
    if rt.rank():
        values = values.reshape(2, 3) + 1
    rt.all_reduce("sum", values).tolist()
    """
    both = run_ranks(script, tmp_path)
    for ended in both:
        assert "[2.0, 2.0, 2.0]" in ended.text
        assert ended.code == 1
        assert "differ in collective 2 of ranks 0, 1" in ended.text
        assert "float32[6] (reduce_type=sum) at script.py:10" in ended.text
        assert "float32[2, 3] (reduce_type=sum) at script.py:10" in ended.text
    assert "rank 1 records add.Tensor -> float32[2, 3] at script.py:9" in both[0].text


LATE = """
    import torch
    import trcomp.runtime as rt

    model = torch.nn.Linear(4, 4).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(40):
        loss = model(torch.ones(2, 4, device="xla")).square().mean()
        if rt.rank() == 1 and step == 30:
            rt.all_reduce("sum", [loss.detach() * 2])
        loss.backward()
        rt.optimizer_step(optimizer, barrier=True)
    rt.settle()
"""


def test_a_rank_whose_graph_is_new_after_many_steps_asks_the_others_first(tmp_path: Path) -> None:
    """Theirs is known to them: without being asked they would go into another collective."""
    _, told = run_ranks(LATE, tmp_path)
    assert told.code == 1
    assert "Ranks 1 and 0 differ in collective 31" in told.text
    assert "float32[] (reduce_type=sum) at script.py:10, rank 0 has" in told.text
    assert "at script.py:12" in told.text and "rank 1 records mul.Tensor" in told.text


UNEVEN = """
    import torch
    import trcomp.runtime as rt

    model = torch.nn.Linear(4, 4).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.ones(2, 4)] * (3 + rt.rank())


    def train(loader):
        for batch in loader:
            model(batch).square().mean().backward()
            rt.optimizer_step(optimizer)


    train(rt.DeviceLoader(batches, uneven="shortest"))
    print("shortest", rt.metrics()["steps"], flush=True)
    train(rt.DeviceLoader(batches))
    {then}
"""


def test_a_rank_that_is_ended_by_its_watcher_tells_the_others_too(tmp_path: Path) -> None:
    """Rank 1 finds that rank 0 has ended; rank 2 waits for it in another group."""
    script = """
    import torch
    import trcomp.runtime as rt

    pairs = [(0, 1), (2,)]
    for step in range(3 + (rt.rank() > 0)):
        rt.all_reduce("sum", torch.ones(2, device="xla") + step, groups=pairs).tolist()
    if rt.rank() == 2:
        rt.rendezvous("saved")
    """
    ended = run_ranks(script, tmp_path, 3)
    assert "UnevenDataError: Rank 1 waits for rank 0" in ended[1].text
    assert ended[2].code == 1
    assert "Rank 2 ends, since rank 1 has failed: trcomp.errors.UnevenDataError" in ended[2].text


def test_a_rank_with_more_batches_than_one_that_has_ended_says_so_in_seconds(
    tmp_path: Path,
) -> None:
    ended, told = run_ranks(UNEVEN.format(then=""), tmp_path)
    assert "shortest 3" in ended.text and "shortest 3" in told.text
    assert told.code == 1
    assert "UnevenDataError: Rank 1 waits for rank 0 in collective 7" in told.text
    assert "at script.py:13; rank 0 has ended after 6 of them" in told.text


@pytest.mark.long
@pytest.mark.parametrize(
    ("then", "words"),
    [
        ('rt.rendezvous("saved")', "rank 0 is at 'saved' at script.py:19 after 6 of them"),
        ("train(rt.DeviceLoader(batches))", "Rank 1 had 4 batches in this pass of the loop"),
    ],
)
def test_so_does_one_whose_peer_waits_elsewhere_or_is_in_its_next_pass(
    tmp_path: Path, then: str, words: str
) -> None:
    _, told = run_ranks(UNEVEN.format(then=then), tmp_path)
    assert told.code == 1
    assert words in told.text


@pytest.mark.slow
def test_the_death_of_a_rank_ends_its_peer(tmp_path: Path) -> None:
    processes = start_ranks(FAILS.format(rank=1, how="sys.stdin.read()"), tmp_path, 2)
    output = processes[1].stdout
    assert output is not None
    while "ready" not in output.readline():
        pass
    processes[1].send_signal(signal.SIGKILL)
    peer, killed = wait_for(processes)
    assert killed.code == -signal.SIGKILL
    assert peer.code != 0


def test_a_rank_that_ends_early_waits_and_says_so(tmp_path: Path) -> None:
    script = """
    import time, torch
    import trcomp.runtime as rt
    from trcomp.runtime import distributed

    distributed._NOTICE_SECONDS = 1
    rt.rendezvous("start")
    if rt.rank() == 0:
        time.sleep(4)
    """
    slow, early = run_ranks(script, tmp_path)
    assert (slow.code, early.code) == (0, 0)
    assert early.text.count("rank 1 has ended and waits for rank 0") == 1
    assert slow.text == ""


def test_a_rank_among_several_that_was_told_no_meeting_place_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(DeviceError, match="TRCOMP_COORDINATOR"):
        distributed.join()


# What is refused.


_VARIABLES_GONE = """
import json, os
import torch
import torch.distributed as dist
import trcomp.runtime as rt
from trcomp.checkpoint import Checkpointer
from trcomp.runtime import own_rank

if {enabled}:
    from trcomp.runtime import persistent

    persistent._WORTH_SECONDS = 0
{met}
for name in os.environ.keys() & {names}:
    del os.environ[name]
model = torch.nn.Linear(3, 2).to(rt.device())
checkpointer = Checkpointer("kept", every=1, model=model)
loss = rt.all_reduce("sum", model(torch.ones(4, 3, device=rt.device())).square().mean())
assert loss.item() > 0
checkpointer.step()
checkpointer.close()
torch.cuda.device_count()
own = own_rank.identity()
print("FOUND " + json.dumps([own.rank, own.world_size, own.local_rank, own.local_world_size]))
"""


_ALL_FOUR = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}


@pytest.mark.parametrize(
    ("enabled", "met", "names"),
    [
        ("1", "rt.rendezvous('all')", {"WORLD_SIZE"}),
        ("1", "rt.rendezvous('all')", _ALL_FOUR),
        ("0", "rt.rendezvous('all')", {"WORLD_SIZE"}),
        ("0", "dist.init_process_group('gloo'); rt.rendezvous('all')", _ALL_FOUR),
    ],
)
def test_a_rank_outlives_its_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enabled: str, met: str, names: set[str]
) -> None:
    # Lightning deletes WORLD_SIZE after a run, and a callback may still compute and save.
    monkeypatch.setenv(flags.CACHE.name, str(tmp_path / "cache"))
    monkeypatch.setenv(flags.ENABLED.name, enabled)
    script = _VARIABLES_GONE.format(met=met, names=names, enabled=enabled)
    assert found_by_ranks(script, tmp_path, 2) == [[rank, 2, rank, 2] for rank in range(2)]


@pytest.mark.parametrize("gone", [["WORLD_SIZE"], []])
def test_a_group_without_the_runtime_knows_its_ranks_on_a_host(
    tmp_path: Path, gone: list[str]
) -> None:
    script = f"""
        import os
        import torch.distributed as dist
        from trcomp.checkpoint import ranks

        dist.init_process_group("gloo")
        for name in {gone}:
            del os.environ[name]
        print(ranks.found().local_rank)
        dist.barrier()
        dist.destroy_process_group()
    """
    ended = run_ranks(script, tmp_path, 2, {flags.WORKER.name: "0"})
    assert [end.text for end in ended] == ["0\n", "1\n"]


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"'mean'.*sum, mul"):
        rt.all_reduce("mean", torch.ones(1, device=rt.device()))


def test_groups_that_are_no_partition_of_the_ranks_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="exactly one group"):
        rt.all_reduce("sum", torch.ones(1, device=rt.device()), groups=[[0], [1]])


def test_a_group_of_its_own_reduces_nothing(found: Any) -> None:
    for name in ("alone", "gathered alone"):
        assert [found[2, rank][name] for rank in (0, 1)] == [[1, 2], [2, 3]]


# Buckets.

sizes = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 50)), max_size=30)


@given(sizes, st.integers(1, 60))
def test_buckets_hold_each_tensor_once_by_dtype_within_the_limit(
    tensors: list[tuple[str, int]], limit: int
) -> None:
    dtypes, num_bytes = [t[0] for t in tensors], [t[1] for t in tensors]
    buckets = plan_buckets(dtypes, num_bytes, limit)
    assert sorted(index for bucket in buckets for index in bucket) == list(range(len(tensors)))
    for bucket in buckets:
        assert len({dtypes[index] for index in bucket}) == 1
        assert bucket == sorted(bucket)
        assert len(bucket) == 1 or sum(num_bytes[index] for index in bucket) <= limit


def test_buckets_are_as_few_as_they_can_be() -> None:
    assert plan_buckets(["f"] * 4, [4, 4, 4, 4], 8) == [[0, 1], [2, 3]]
    assert plan_buckets(["f", "h", "f"], [4, 4, 4], 8) == [[0, 2], [1]]
