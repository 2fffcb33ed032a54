"""The script API. Importing it makes `xla` a device of this process; JAX starts at first use.

With `enabled=False` the same names work on torch's own devices, and neither JAX nor the device is
there.
"""

from typing import TYPE_CHECKING

from trcomp import flags

if TYPE_CHECKING or flags.ENABLED.get():
    from trcomp.runtime import bring_up as bring_up
    from trcomp.runtime.xla import (
        DeviceLoader,
        Padding,
        all_gather,
        all_reduce,
        broadcast,
        device,
        device_count,
        local_rank,
        manual_seed,
        metrics,
        metrics_report,
        optimizer_step,
        rank,
        reduce_gradients,
        rendezvous,
        settle,
        step,
        sync,
        take_rng_state,
        world_size,
    )
else:
    from trcomp.runtime.plain import (
        DeviceLoader,
        Padding,
        all_gather,
        all_reduce,
        broadcast,
        device,
        device_count,
        local_rank,
        manual_seed,
        metrics,
        metrics_report,
        optimizer_step,
        rank,
        reduce_gradients,
        rendezvous,
        settle,
        step,
        sync,
        take_rng_state,
        world_size,
    )

__all__ = [
    "DeviceLoader",
    "Padding",
    "all_gather",
    "all_reduce",
    "broadcast",
    "device",
    "device_count",
    "local_rank",
    "manual_seed",
    "metrics",
    "metrics_report",
    "optimizer_step",
    "rank",
    "reduce_gradients",
    "rendezvous",
    "settle",
    "step",
    "sync",
    "take_rng_state",
    "world_size",
]
