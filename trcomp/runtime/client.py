"""The XLA client of this process: started at first use, its device, its mesh, its arrays."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trcomp.runtime.device import Process, check_fork
from trcomp.runtime.forks import silence_warning
from trcomp.runtime.ir import Buffer

# torch's indices and labels are int64, and `.double()` means float64.
jax.config.update("jax_enable_x64", True)


AXIS = "ranks"
"""Name of the mesh axis over which collectives reduce."""

_starting = threading.Lock()


def start() -> None:
    """Start the client unless it runs: join the other ranks, open the device.

    Raises:
        ForkedProcessError: This process was forked from one whose client runs.
    """
    if Process.started:
        return
    from trcomp.runtime import distributed

    with _starting:  # The loader's thread may be the first to need the device, or the script.
        if Process.started:
            return
        check_fork()
        distributed.join()
        silence_warning()
        Process.started = True
    device()


@lru_cache(maxsize=1)
def device() -> jax.Device:
    """The device that this process drives."""
    start()
    return jax.local_devices()[0]


def platform() -> str:
    """ "cpu" or "gpu"."""
    return "gpu" if device().platform in ("gpu", "cuda", "rocm") else "cpu"


def rank() -> int:
    """This process among the job's."""
    return jax.process_index() if Process.started else 0


def num_ranks() -> int:
    """Processes in the job."""
    return jax.process_count() if Process.started else 1


@lru_cache(maxsize=1)
def mesh() -> Mesh:
    """One axis over all ranks' devices."""
    return Mesh(np.array(jax.devices()), (AXIS,))


@lru_cache(maxsize=1)
def _replicated() -> NamedSharding:
    return NamedSharding(mesh(), PartitionSpec())


def to_local(buffer: Buffer) -> jax.Array:
    """The buffer as an array on this process's device."""
    if buffer.local_array is None:
        assert buffer.global_array is not None
        buffer.local_array = buffer.global_array.addressable_data(0)
    return buffer.local_array


def to_global(buffer: Buffer) -> jax.Array:
    """The buffer as an array that is declared replicated over all ranks."""
    if buffer.global_array is None:
        assert buffer.local_array is not None
        buffer.global_array = _declare_replicated(buffer.local_array)
    return buffer.global_array


def _declare_replicated(array: jax.Array) -> jax.Array:
    return jax.make_array_from_single_device_arrays(array.shape, _replicated(), [array])


def numbers(values: Sequence[float | int], dtype: Any, collective: bool) -> Any:
    """Lifted numbers of one dtype, packed into one array, shape (len(values),)."""
    packed = np.asarray(values, dtype)
    return _declare_replicated(put(packed)) if collective else packed


def put(host: np.ndarray[Any, Any]) -> jax.Array:
    """A copy of a host array on the device; the source may change as soon as this returns."""
    start()
    # JAX takes over memory that it finds aligned, or reads it later (may_alias=False covers jax
    # arrays only), so it gets memory that nobody else has.
    return jax.device_put(np.array(host), device())


def filled(size: tuple[int, ...], number: float, dtype: Any) -> jax.Array:
    """An array on the device, all of one number; nothing is compiled for it."""
    start()
    host = np.full(size, number, dtype) if number else np.zeros(size, dtype)
    return jax.device_put(host, device())
