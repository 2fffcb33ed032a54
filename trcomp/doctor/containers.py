"""Checks of the container engine, and whether it can hand GPUs to containers."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import Any

from trcomp.doctor.findings import Asked, Check, Finding, ok, problem, warning
from trcomp.env import gpus
from trcomp.errors import BackendUnavailableError
from trcomp.images import engine

_TOOLKIT = (
    "Install it, then `sudo nvidia-ctk runtime configure --runtime=docker` and restart the engine: "
    "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/"
)


@dataclass(frozen=True)
class Engine:
    """The container engine of this machine.

    Attributes:
        name: Its name and version, empty if none can be used.
        address: Where it is asked.
        error: Why none can be used.
        hint: What to do about that.
        hands_over_gpus: Whether it knows NVIDIA's runtime, or its devices.
        has_toolkit: Whether the toolkit's command is there.
        num_gpus: GPUs that there are to hand over.
    """

    name: str = ""
    address: str = ""
    error: str = ""
    hint: str = ""
    hands_over_gpus: bool = False
    has_toolkit: bool = False
    num_gpus: int = 0


def read(asked: Asked) -> Engine:
    """What the engine says of itself, if there is one."""
    num_gpus, has_toolkit = len(gpus.found(os.environ)), shutil.which("nvidia-ctk") is not None
    address = engine.address()
    try:
        client = engine.connect()
    except BackendUnavailableError as error:
        return Engine(
            address=address,
            error=error.message,
            hint=error.hint or "",
            has_toolkit=has_toolkit,
            num_gpus=num_gpus,
        )
    try:
        with engine.told(f"ask the container engine at {address} about itself"):
            info, version = client.info(), client.version()
    except BackendUnavailableError as error:
        return Engine(address=address, error=error.message, hint=error.hint or "")
    finally:
        client.close()
    return Engine(
        name=f"{named(version)} {version.get('Version', '')}".strip(),
        address=address,
        hands_over_gpus=knows_nvidia(info),
        has_toolkit=has_toolkit,
        num_gpus=num_gpus,
    )


def named(version: dict[str, Any]) -> str:
    """Whose engine it is, from what it says of its version."""
    parts = [str(part.get("Name", "")) for part in version.get("Components") or ()]
    return "Podman" if any("podman" in part.lower() for part in parts) else "Docker"


def knows_nvidia(info: dict[str, Any]) -> bool:
    """Whether the engine knows NVIDIA's runtime, or its GPUs by the container device interface."""
    devices = [str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or ()]
    return "nvidia" in (info.get("Runtimes") or {}) or any(
        device.startswith("nvidia.com/gpu") for device in devices
    )


def judge_engine(found: Engine, asked: Asked) -> Finding:
    """Whether jobs in containers can run on this machine."""
    if found.error:
        return warning(found.error, found.hint)
    return ok(f"{found.name} at {found.address}")


def judge_toolkit(found: Engine, asked: Asked) -> Finding:
    """Whether containers can have GPUs."""
    if found.error:
        return ok("not asked for: there is no engine")
    if not (found.num_gpus or asked.gpu):
        return ok("not needed without a GPU")
    podman = found.name.startswith("Podman")
    if found.hands_over_gpus or (podman and found.has_toolkit):
        return ok(f"known to {found.name}")
    complain = problem if asked.gpu else warning
    return complain(f"{found.name} cannot hand GPUs to containers.", _TOOLKIT)


CHECKS = (
    Check(
        "container engine",
        read,
        judge_engine,
        "the engine that DOCKER_HOST or one of the usual sockets leads to, Docker's or Podman's",
        "there is none, it may not be used, or it is too old; jobs without containers need none",
    ),
    Check(
        "container toolkit",
        read,
        judge_toolkit,
        "nvidia-container-toolkit, as the engine knows it",
        "there are GPUs and an engine that cannot hand them over",
    ),
)
