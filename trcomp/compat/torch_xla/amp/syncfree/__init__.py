"""`torch_xla.amp.syncfree`: optimizers whose `step` takes whether the gradients overflowed."""

from __future__ import annotations

from .optimizers import SGD, Adam, AdamW

__all__ = ["SGD", "Adam", "AdamW"]
