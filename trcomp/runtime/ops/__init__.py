"""The operators of the device, in families; importing this registers them all."""

from trcomp.runtime import fallback
from trcomp.runtime.dispatch import register_rules
from trcomp.runtime.ops import (
    activations,
    attention,
    comparison,
    convolution,
    elementwise,
    losses,
    matmul,
    memory,
    normalization,
    optimizers,
    reductions,
    sorting,
    unary,
)

__all__ = [
    "activations",
    "attention",
    "comparison",
    "convolution",
    "elementwise",
    "losses",
    "matmul",
    "memory",
    "normalization",
    "optimizers",
    "reductions",
    "sorting",
    "unary",
]

# Kernels that the families wrote by hand are registered by now; the table fills in the rest.
register_rules()
fallback.register()
