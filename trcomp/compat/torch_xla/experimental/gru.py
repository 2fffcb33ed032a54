"""`torch_xla.experimental.gru.GRU`: torch's own, which is one operator here too."""

from __future__ import annotations

from torch.nn import GRU

__all__ = ["GRU"]
