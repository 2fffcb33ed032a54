"""`torch_xla.experimental.pjrt`, of releases before 2.1: names that moved to `runtime` and `xm`."""

from __future__ import annotations

from typing import Any

from .. import runtime
from .._deprecated import say
from ..core import xla_model

_MOVED = {"broadcast_master_param": xla_model, "rendezvous": xla_model}


def __getattr__(name: str) -> Any:
    home = _MOVED.get(name, runtime)
    if name.startswith("_") or not hasattr(home, name):
        raise AttributeError(f"module {__name__!r} has no {name!r}")
    say(f"torch_xla.experimental.pjrt.{name}", f"{home.__name__}.{name}")
    return getattr(home, name)
