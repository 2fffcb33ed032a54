"""Brings the device up: its operators, then what torch asks of a device around them."""

from trcomp.runtime import (
    accelerator,
    amp,
    compile_backends,
    compile_models,
    ddp,
    device_module,
    exchange,
    fallback,
    freed_storages,
    garbage,
    generators,
    grad_scaler,
    layouts,
    modules,
    ops,
    optimizer_state,
    persistent,
    process_groups,
    recompute,
    scopes,
    serialization,
    stores,
    streams,
)
from trcomp.runtime.dispatch import register_rules
from trcomp.runtime.ops import conjugates

__all__ = ["ops"]

device_module.register()
# The kernels that the families wrote by hand are registered by now; the table fills in the rest,
# and what it does not cover falls back.
conjugates.register()
register_rules()
fallback.register()
accelerator.register()
amp.register()
compile_backends.register()
compile_models.register()
ddp.register()
exchange.register()
freed_storages.register()
garbage.register()
generators.register()
grad_scaler.register()
layouts.register()
modules.register()
optimizer_state.register()
process_groups.register()
recompute.register()
serialization.register()
stores.register()
streams.register()
scopes.install()
persistent.take_head_start()
