"""`torch_xla.experimental`: eager mode, and what needs no experiment here."""

from __future__ import annotations

from .._missing import missing
from .eager import eager_mode, eager_mode_context, is_eager_mode

__all__ = ["eager_mode", "eager_mode_context", "is_eager_mode"]

__getattr__ = missing(__name__)
