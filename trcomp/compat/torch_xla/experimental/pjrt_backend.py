"""`torch_xla.experimental.pjrt_backend`, of release 2.0: importing it makes "xla" a backend."""

from __future__ import annotations

from ..distributed import xla_backend

__all__ = ["xla_backend"]
