"""The GPUs and network devices of this machine, found without opening a CUDA context.

A CUDA context in the entrypoint would hold memory on every GPU for the whole job, and a forked or
early one would make CUDA_VISIBLE_DEVICES, which workers get later, come too late.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_GPU = re.compile(r"^GPU (\d+): (.*) \(UUID: (GPU-[^)]+)\)")
_MIG = re.compile(r"^\s+MIG .*\(UUID: (MIG-[^)]+)\)")
_LISTING_TIMEOUT_SECONDS = 30


def visible(environ: Mapping[str, str], devices: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The devices that CUDA_VISIBLE_DEVICES leaves, each as a value for that variable.

    Follows CUDA's rules: the list ends at the first entry that names no device, a UUID may be
    shortened, and an empty list or -1 hides everything.
    Source: CUDA C++ Programming Guide, "CUDA Environment Variables".

    Args:
        environ: The environment that may hold CUDA_VISIBLE_DEVICES.
        devices: ``(index, uuid)`` of every device of the machine; see `listed`.
    """
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return tuple(index or uuid for index, uuid in devices)
    chosen: list[str] = []
    for entry in (part.strip() for part in wanted.split(",")):
        if not _names_a_device(entry, devices) or entry in chosen:
            break
        chosen.append(entry)
    return tuple(chosen)


def found(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs (or MIG slices) that workers started with this environment may use."""
    return visible(environ, listed())


def listed(
    *, command: str = "nvidia-smi", proc: Path = Path("/proc/driver/nvidia/gpus")
) -> tuple[tuple[str, str], ...]:
    """``(index, uuid)`` of every device of the machine, in CUDA's PCI order.

    A GPU that is cut into MIG slices stands for its slices, which have no index. Where the driver's
    tool is missing, the kernel driver's own directory gives the number of GPUs, without UUIDs.
    """
    listing = _listing(command)
    if listing is None:
        count = len(list(proc.iterdir())) if proc.is_dir() else 0
        return tuple((str(index), "") for index in range(count))
    return parsed(listing)


def model(*, command: str = "nvidia-smi") -> str:
    """What the driver's tool calls this machine's first GPU; "gpu" where nothing tells."""
    lines = (_listing(command) or "").splitlines()
    return next((gpu[2] for line in lines if (gpu := _GPU.match(line))), "gpu")


def parsed(listing: str) -> tuple[tuple[str, str], ...]:
    """`listed`, from the text that ``nvidia-smi -L`` prints."""
    groups: list[list[tuple[str, str]]] = []
    for line in listing.splitlines():
        if gpu := _GPU.match(line):
            groups.append([(gpu[1], gpu[3])])
        elif (mig := _MIG.match(line)) and groups:
            groups[-1].append(("", mig[1]))
    return tuple(device for group in groups for device in (group[1:] or group))


def _listing(command: str) -> str | None:
    try:
        return subprocess.run(
            [command, "-L"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LISTING_TIMEOUT_SECONDS,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def efa_devices(root: Path = Path("/sys/class/infiniband")) -> int:
    """The number of Elastic Fabric Adapters of this machine.

    The device is probed, not the instance type: lists of types go stale, and then a job falls back
    to TCP without a word.
    """
    if not root.is_dir():
        return 0
    return sum(1 for device in root.iterdir() if _is_efa(device))


def _is_efa(device: Path) -> bool:
    driver = device / "device" / "driver"
    if driver.exists():
        return driver.resolve().name == "efa"
    return device.name.startswith(("efa", "rdmap"))


def _names_a_device(entry: str, devices: Sequence[tuple[str, str]]) -> bool:
    if not entry:
        return False
    if entry.startswith(("GPU-", "MIG-")):
        return any(uuid.startswith(entry) or not uuid for _, uuid in devices)
    return any(index == entry for index, _ in devices)
