"""How libraries say that the process at the other end of a connection is gone."""

from __future__ import annotations

import re

BROKEN_CONNECTION = re.compile(
    r"[Cc]onnection (closed|reset) by|Broken pipe|remote process exit(ed|ing)"
)
"""In the words of gloo ("by peer"), of NCCL ("by remote peer", "remote process") and the kernel."""
