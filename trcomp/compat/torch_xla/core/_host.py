"""What `xm` does on the host: saving, meeting the other ranks, moving nested data."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Collection, Sequence
from typing import IO, Any

import torch

import trcomp.runtime as rt
from trcomp.errors import UnsupportedError
from trcomp.runtime import batches


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """Wait until every rank is here; the ranks' payloads in order.

    Args:
        tag: Which meeting it is.
        payload: Bytes for the others, of any length.
        replicas: The ranks that come: empty, or all of them.

    Raises:
        TypeError: The payload is not bytes.
        UnsupportedError: Some ranks are to meet without the others.
    """
    if not isinstance(payload, bytes):
        raise TypeError(f"got a payload of {type(payload)}; allowed: bytes.")
    if replicas and sorted(replicas) != list(range(rt.world_size())):
        raise UnsupportedError(
            f"got replicas={list(replicas)!r}; all {rt.world_size()} ranks meet.",
            "Leave replicas out and call it on every rank.",
        )
    return rt.rendezvous(tag, payload)


def xla_rendezvous(
    payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None
) -> list[bytes]:
    """`rendezvous`, its arguments in another order."""
    return rendezvous(tag or "torch_xla.core.xla_model.xla_rendezvous", payload, ordinals or ())


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """`reduce_fn` of all ranks' `data`, in order; any picklable data, tensors arrive on the CPU."""
    payload = pickle.dumps(_maybe_convert_to_cpu(data))
    return reduce_fn([pickle.loads(part) for part in rt.rendezvous(tag, payload)])


def do_on_ordinals(
    target: Callable[..., Any], data: Any = (), ordinals: Collection[int] | int = (0,)
) -> Any:
    """Call `target(*data)`, tensors on the CPU, on some ranks; the others wait and get None."""
    chosen = {ordinals} if isinstance(ordinals, int) else set(ordinals)
    # Before some ranks alone read values: what is pending may hold collectives.
    rt.settle()
    result = target(*_maybe_convert_to_cpu(data)) if rt.rank() in chosen else None
    rt.rendezvous("torch_xla.core.xla_model.do_on_ordinals")
    return result


def save(
    data: Any,
    file_or_path: str | os.PathLike[str] | IO[bytes],
    master_only: bool = True,
    global_master: bool = False,
) -> None:
    """`torch.save` of `data` moved to the CPU; every rank must call it.

    Args:
        data: Anything `torch.save` takes.
        file_or_path: Where to.
        master_only: Whether the master alone writes.
        global_master: Whether the master is the job's rank 0, or each host's first rank.
    """
    rt.settle()
    master = rt.rank() if global_master else rt.local_rank()
    if not master_only or master == 0:
        torch.save(_maybe_convert_to_cpu(data), file_or_path)
    rt.rendezvous("torch_xla.core.xla_model.save")


def _maybe_convert_to_cpu(data: Any, convert: bool = True) -> Any:
    return batches.map_tensors(data, _to_cpu) if convert else data


def _to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_cpu:
        return tensor
    moved = tensor.detach().cpu()
    return moved.requires_grad_(tensor.requires_grad) if tensor.is_leaf else moved


def send_cpu_data_to_device(datas: Any, device: Any, input_sharding: Any = None) -> Any:
    """The data with its tensors on the device; a lone tensor gives a list of one."""
    if isinstance(datas, torch.Tensor):
        datas = [datas]
    return batches.map_tensors(datas, lambda tensor: tensor.to(device))
