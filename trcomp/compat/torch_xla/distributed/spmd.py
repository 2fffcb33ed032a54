"""`torch_xla.distributed.spmd`: importable, since transformers imports it; see `_missing`."""

from __future__ import annotations

from .._missing import missing

__getattr__ = missing(__name__)
