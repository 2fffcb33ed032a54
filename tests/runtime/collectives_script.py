"""What each rank does in `test_process_group`: calls torch.distributed, leaves what came of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import trcomp.runtime as rt
from trcomp.compat import cuda

found: dict[str, Any] = {}


def held(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor on the device."""
    return torch.tensor(values, dtype=dtype).to(rt.device())


def room(*size: int) -> torch.Tensor:
    """A tensor on the device that is to be filled."""
    return torch.empty(size, device=rt.device())


def lists(tensors: list[torch.Tensor]) -> list[Any]:
    """Their numbers."""
    return [tensor.tolist() for tensor in tensors]


def reductions(rank: int, world: int) -> None:
    """all_reduce and its kin."""
    for name in ("SUM", "AVG", "MIN", "MAX", "PRODUCT"):
        tensor = held(rank + 1, 2 * rank)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, name))
        found[name] = tensor.tolist()
    for name in ("BAND", "BOR", "BXOR"):
        tensor = held(rank + 4, 8, dtype=torch.int64)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, name))
        found[name] = tensor.tolist()
    flags = held(rank == 1, 0, dtype=torch.bool)
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    found["bools"] = flags.tolist()
    half = held(rank + 0.5, dtype=torch.bfloat16)
    dist.all_reduce(half)
    found["bfloat16"] = half.tolist()
    table = torch.full((2, 3), float(rank), device=rt.device())
    dist.all_reduce(table[:, 1])
    found["a column"] = table.tolist()
    tensor = held(rank + 1)
    dist.reduce(tensor, dst=1)
    found["reduce"] = tensor.tolist()
    share = room(2)
    dist.reduce_scatter_single(share, torch.arange(2.0 * world, device=rt.device()) + rank)
    found["reduce_scatter_single"] = share.tolist()
    dist.reduce_scatter(share, [held(rank, to) for to in range(world)])
    found["reduce_scatter"] = share.tolist()
    uneven = room(rank + 1)
    dist.reduce_scatter(uneven, [torch.ones(to + 1, device=rt.device()) for to in range(world)])
    found["uneven reduce_scatter"] = uneven.tolist()


def movements(rank: int, world: int) -> None:
    """What goes from rank to rank as it is."""
    # A constant on all ranks but one.
    tensor = torch.zeros(2, device=rt.device())
    if rank == 1:
        tensor = held(float("nan"), 7)
    dist.broadcast(tensor, src=1)
    found["broadcast"] = str(tensor.tolist())
    parts = [room(2) for _ in range(world)]
    dist.all_gather(parts, held(rank, 5))
    found["all_gather"] = lists(parts)
    parts = [room(to + 1) for to in range(world)]
    dist.all_gather(parts, torch.full((rank + 1,), float(rank), device=rt.device()))
    found["uneven all_gather"] = lists(parts)
    whole = room(world, 2)
    dist.all_gather_single(whole, held(rank, 5))
    found["all_gather_single"] = whole.tolist()
    parts = [room(1) for _ in range(world)]
    dist.gather(held(rank), parts if rank == 2 else None, dst=2)
    found["gather"] = lists(parts) if rank == 2 else None
    mine = room(1)
    dist.scatter(mine, [held(10 + to) for to in range(world)] if rank == 1 else None, src=1)
    found["scatter"] = mine.tolist()
    parts = [room(1) for _ in range(world)]
    dist.all_to_all(parts, [held(10 * rank + to) for to in range(world)])
    found["all_to_all"] = lists(parts)
    output = room(world)
    dist.all_to_all_single(output, torch.arange(1.0 * world, device=rt.device()) + 10 * rank)
    found["all_to_all_single"] = output.tolist()
    # Rank r sends `to` elements to rank `to`, so it gets r of each.
    output = room(world * rank)
    dist.all_to_all_single(
        output, held(*[rank] * sum(range(world))), [rank] * world, list(range(world))
    )
    found["uneven all_to_all_single"] = output.tolist()


def messages(rank: int, world: int) -> None:
    """Point to point."""
    tensor = held(1, 2, dtype=torch.bfloat16) if rank == 0 else held(0, 0, dtype=torch.bfloat16)
    if rank == 0:
        dist.send(tensor, 2, tag=7)
    elif rank == 2:
        assert dist.recv(tensor, tag=7) == 0
    found["send and recv"] = tensor.tolist()
    came = room(1)
    ways = [
        dist.P2POp(dist.isend, held(rank), (rank + 1) % world),
        dist.P2POp(dist.irecv, came, (rank - 1) % world),
    ]
    for work in dist.batch_isend_irecv(ways):
        work.wait()
    found["around"] = came.tolist()


def on_the_host(rank: int, world: int) -> None:
    """Objects, host tensors, barriers: no executable runs for them."""
    rt.settle()
    before = rt.metrics()["executions"]
    everyone: list[Any] = [None] * world
    dist.all_gather_object(everyone, {"rank": rank})
    shared = [f"from {rank}"]
    dist.broadcast_object_list(shared, src=1)
    gathered: list[Any] = [None] * world
    dist.gather_object(rank, gathered if rank == 0 else None, dst=0)
    mine = [None]
    dist.scatter_object_list(mine, [10, 20, 30] if rank == 0 else None, src=0)
    host = torch.ones(2)
    dist.all_reduce(host)
    dist.barrier()
    found["objects"] = [everyone, shared, gathered if rank == 0 else None, mine, host.tolist()]
    found["executions"] = rt.metrics()["executions"] - before


def groups(rank: int, world: int) -> None:
    """Some of the ranks, and other names of the backend."""
    pair, outer = dist.new_group([0, 1]), dist.new_group([0, 2], backend="nccl")
    for name, group in {"pair": pair, "outer": outer}.items():
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            continue
        tensor, part = held(rank + 1), room(2)
        dist.all_reduce(tensor, group=group)
        dist.all_gather_single(part, held(rank), group)
        found[name] = [tensor.tolist(), part.tolist(), dist.get_rank(group)]
    if rank < 2:
        mine = room(1)
        dist.all_to_all_single(part := room(2), held(rank, rank + 10), group=pair)
        dist.reduce_scatter_single(mine, held(rank, 2), group=pair)
        tensor = held(rank)
        dist.broadcast(tensor, src=1, group=pair)
        found["pair's"] = [part.tolist(), mine.tolist(), tensor.tolist()]
    for name in ("gloo", "cpu:gloo,cuda:nccl", "cpu:gloo,xla:xla"):
        group = dist.new_group(backend=name)
        tensors = [torch.ones(1)] + ([] if name == "gloo" else [held(1)])
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
        found[name] = [lists(tensors), dist.get_backend(group)]


def handles(rank: int, world: int) -> None:
    """What async_op=True returns."""
    rt.settle()
    before = rt.metrics()["executions"]
    tensor = held(rank + 1)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    recorded = rt.metrics()["executions"] == before
    (value,) = work.get_future().wait()
    found["handle"] = [recorded, work.is_completed(), value.tolist()]
    with dist.distributed_c10d._coalescing_manager():
        several = [held(rank), held(1, 2)]
        for tensor in several:
            dist.all_reduce(tensor)
    found["coalesced"] = lists(several)


def early_reads(rank: int, world: int) -> None:
    """One rank reads in the middle of a step: it has two graphs where the others have one."""
    weight = torch.ones(4, device=rt.device(), requires_grad=True)
    values = []
    for step in range(3):
        loss = (weight * held(*range(4)) * (rank + step)).sum()
        loss.backward()
        assert weight.grad is not None
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        if rank == 0:
            values.append(mean.item())
        dist.all_reduce(weight.grad, dist.ReduceOp.AVG)
        if rank == 1:
            loss.item()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
        weight.grad = None
        if rank == 0:
            # Those that have not read have not started what this rank waits for.
            values.append(weight.sum().item())
        dist.barrier()
    found["early reads"] = [values, weight.tolist()]


def main() -> None:
    """Run all of it and leave what was found."""
    cuda.install()
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    found["backend"] = [dist.get_backend(), dist.is_nccl_available()]
    for part in (reductions, movements, messages, on_the_host, groups, handles, early_reads):
        part(rank, world)
    found["fallbacks"] = dict(rt.metrics()["fallbacks"])
    # One rank alone reads what all have reduced; the others end.
    last = held(rank)
    dist.all_reduce(last)
    found["last"] = last.tolist() if rank == 0 else None
    Path(f"found-{rank}.json").write_text(json.dumps(found))
