"""Tensors between host and device."""

from __future__ import annotations

import time

import jax
import numpy as np
import torch

from trcomp.runtime import client, interruptions, storage
from trcomp.runtime.device import check_fork, check_index
from trcomp.runtime.dtypes import TO_JAX, TO_TORCH
from trcomp.runtime.ir import Value
from trcomp.runtime.metrics import counters
from trcomp.runtime.peers import blaming_peers
from trcomp.runtime.samples import note
from trcomp.runtime.storage import output, value_of
from trcomp.runtime.sync import fetch

# What numpy has no type of its own for passes as integers with the same bytes.
_CARRIED = {torch.bfloat16: torch.int16} | {
    dtype: torch.uint8 for dtype in TO_JAX if dtype.itemsize == 1 and dtype.is_floating_point
}


def upload(tensor: torch.Tensor) -> Value:
    """A Value with a private copy of a dense row-major CPU tensor. Records nothing; thread safe."""
    check_fork()
    carrier = _CARRIED.get(tensor.dtype)
    tensor = tensor.detach().resolve_conj().resolve_neg()
    host = (tensor if carrier is None else tensor.view(carrier)).numpy()
    start = time.perf_counter()
    value = Value.of_array(client.put(host.view(TO_JAX[tensor.dtype])))
    note("upload_seconds", time.perf_counter() - start)
    note("upload_bytes", host.nbytes)
    return value


def to_device(
    tensor: torch.Tensor,
    device: torch.device | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """A copy of a CPU tensor on the device.

    Args:
        tensor: On the CPU, any shape, strides and dtype that XLA has.
        device: The `xla` device; there is one per process.
        memory_format: As for `torch.Tensor.to`; by default dense strides are kept.

    Returns:
        A tensor of the same size and dtype that shares nothing with `tensor`. It takes no part in
        autograd.
    """
    if device is not None:
        check_index(device)
    host = tensor.detach()
    size, stride = tuple(host.size()), storage.stride_as(host, memory_format)
    made = output(size, host.dtype, stride)
    host = host.permute(storage.storage_order(size, stride)).contiguous()
    return storage.wrap(upload(host), made)


def download(array: jax.Array) -> torch.Tensor:
    """A device array's elements on the host, flat, row-major, private to the caller."""
    start = time.perf_counter()
    with blaming_peers():
        host = np.array(array).reshape(-1)
    seconds = time.perf_counter() - start
    counters.run_seconds += seconds
    note("download_seconds", seconds)
    note("download_bytes", host.nbytes)
    dtype = TO_TORCH[host.dtype]
    if dtype not in _CARRIED:
        return torch.from_numpy(host)
    carrier = np.int16 if dtype.itemsize == 2 else np.uint8
    return torch.from_numpy(host.view(carrier)).view(dtype)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a device tensor on the CPU, with the same size, strides and dtype."""
    check_fork()
    with interruptions.noted(interruptions.READ):
        flat = download(fetch(value_of(tensor)))
    if flat.dtype != tensor.dtype:
        flat = flat.view(tensor.dtype)
    host = torch.as_strided(flat, tensor.size(), tensor.stride(), tensor.storage_offset())
    if tensor.is_conj() or tensor.is_neg():
        return host.conj().resolve_conj() if tensor.is_conj() else -host
    if host.numel() == flat.numel() and storage.is_dense(tuple(host.size()), host.stride()):
        return host
    return host.clone()
