"""`torch_xla.amp`: autocast, gradient scaling, optimizers that skip a step on the device."""

from __future__ import annotations

from .._missing import missing
from .autocast_mode import autocast
from .grad_scaler import GradScaler

__all__ = ["GradScaler", "autocast"]

__getattr__ = missing(__name__)
