"""The operators of the device, in families; importing this registers them all."""

from trcomp.runtime import (
    amp,
    exchange,
    fallback,
    generators,
    grad_scaler,
    layouts,
    modules,
    recompute,
    serialization,
)
from trcomp.runtime.dispatch import register_rules
from trcomp.runtime.ops import (
    activations,
    adaptive,
    attention,
    comparison,
    convolution,
    creation,
    ctc,
    distances,
    elementwise,
    foreach,
    grouped,
    indexing,
    losses,
    margins,
    matmul,
    memory,
    normalization,
    optimizers,
    pooling,
    random,
    recurrent,
    reductions,
    resizing,
    scaling,
    scattering,
    shaping,
    sorting,
    unary,
    view_writes,
)

__all__ = [
    "activations",
    "adaptive",
    "attention",
    "comparison",
    "convolution",
    "creation",
    "ctc",
    "distances",
    "elementwise",
    "foreach",
    "grouped",
    "indexing",
    "losses",
    "margins",
    "matmul",
    "memory",
    "normalization",
    "optimizers",
    "pooling",
    "random",
    "recurrent",
    "reductions",
    "resizing",
    "scaling",
    "scattering",
    "shaping",
    "sorting",
    "unary",
    "view_writes",
]

# Kernels that the families wrote by hand are registered by now; the table fills in the rest.
register_rules()
fallback.register()
amp.register()
exchange.register()
generators.register()
grad_scaler.register()
layouts.register()
modules.register()
recompute.register()
serialization.register()
