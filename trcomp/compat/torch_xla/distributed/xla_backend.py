"""Importing it makes "xla" a backend of torch.distributed, and `xla://` a way to meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from trcomp import flags

from .._missing import missing

if TYPE_CHECKING or flags.ENABLED.get():
    from trcomp.runtime import process_groups  # noqa: F401 - registered with the device
    from trcomp.runtime.process_group import XlaProcessGroup as ProcessGroupXla
else:
    from ._plain_backend import ProcessGroupXla

__all__ = ["ProcessGroupXla", "new_xla_process_group"]

__getattr__ = missing(__name__)

new_xla_process_group = dist.new_group
"""Groups of ranks need nothing special."""
