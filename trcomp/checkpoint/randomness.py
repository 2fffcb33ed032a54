"""A process's random states: torch's, its device's, numpy's, Python's, and those of generators."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any

import torch


def state(generators: Sequence[torch.Generator] = ()) -> dict[str, Any]:
    """All of it, as values that `torch.load` takes for safe."""
    found: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "generators": [generator.get_state() for generator in generators],
    }
    module = _device_module()
    if module is not None:
        found["device"] = module.get_rng_state()
    if "numpy" in sys.modules:
        numpy = dict(sys.modules["numpy"].random.get_state(legacy=False))
        inner = numpy.pop("state")
        found["numpy"] = numpy | {"key": inner["key"].tolist(), "pos": int(inner["pos"])}
    return found


def restore(found: dict[str, Any], generators: Sequence[torch.Generator] = ()) -> None:
    """Go back to what `state` gave; what is not here any more is left out."""
    torch.set_rng_state(found["torch"])
    random.setstate(found["python"])
    for generator, kept in zip(generators, found["generators"], strict=False):
        generator.set_state(kept)
    module = _device_module()
    if module is not None and "device" in found:
        module.set_rng_state(found["device"])
    if "numpy" in found and "numpy" in sys.modules:
        kept = dict(found["numpy"])
        kept["state"] = {"key": kept.pop("key"), "pos": kept.pop("pos")}
        sys.modules["numpy"].random.set_state(kept)


def _device_module() -> Any:
    device = torch.accelerator.current_accelerator()
    return None if device is None else torch.get_device_module(device)
