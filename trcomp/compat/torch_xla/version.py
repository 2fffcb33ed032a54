"""`torch_xla.version`: the release whose names the tree has."""

from __future__ import annotations

from trcomp.compat import TORCH_XLA_VERSION

__version__ = TORCH_XLA_VERSION
__torch_gitrev__ = ""
__xla_gitrev__ = ""
