"""The operators of the device, in families; importing this registers them all."""

from trcomp.runtime import fallback
from trcomp.runtime.dispatch import register_rules
from trcomp.runtime.ops import (
    attention,
    convolution,
    elementwise,
    losses,
    matmul,
    memory,
    normalization,
    optimizers,
)

__all__ = [
    "attention",
    "convolution",
    "elementwise",
    "losses",
    "matmul",
    "memory",
    "normalization",
    "optimizers",
]

# Kernels that the families wrote by hand are registered by now; the table fills in the rest.
register_rules()
fallback.register()
