"""Where executables are kept, and what they depend on that is known without opening a device."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

from trcomp import flags, s3

OFF = "off"
AUTOTUNING = "autotuning"
"""The folder, beside the executables, of what XLA found out about a GPU."""
STARTS = "starts"
"""The folder, beside the executables, of what each script used first."""


def kept_at(environ: Mapping[str, str]) -> str:
    """The directory that keeps executables, `OFF`, or the ``s3://`` that a job takes them from.

    Raises:
        RuntimeError: The user has no home directory.
    """
    text = flags.CACHE.get(environ)
    if text == OFF or s3.is_url(text):
        return text
    root = text or os.path.join(environ.get("XDG_CACHE_HOME") or "~/.cache", "trcomp")
    return os.path.expanduser(root)


def toolchain(environ: Mapping[str, str], device_kind: str) -> tuple[str, ...]:
    """What makes an executable out of a graph: two that differ in it share none.

    Args:
        environ: That of the process which compiles.
        device_kind: "cpu", or else it is a GPU.
    """
    return (
        _sources(),
        f"python {sys.version_info[0]}.{sys.version_info[1]}",
        *(f"{name} {version(name)}" for name in ("jax", "jaxlib", "torch", "numpy")),
        *([_processor()] if device_kind == "cpu" else []),
        environ.get("XLA_FLAGS", ""),
        *(f"{flag.name}={flag.get(environ)}" for flag in flags.ALL if flag.in_key),
    )


def shared_folder(environ: Mapping[str, str], device: str) -> str:
    """The folder in S3 of all that a job's workers may load, and of little else.

    Args:
        environ: That of a worker.
        device: "cpu", or the name of the host's GPUs.
    """
    kind = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    digest = hashlib.sha256("\0".join((device, *toolchain(environ, kind))).encode())
    return f"{kind}-jax{version('jax')}-{digest.hexdigest()[:16]}"


@cache
def _sources() -> str:
    """A digest of the code that lowers graphs."""
    digest = hashlib.sha256()
    for source in sorted((Path(__file__).parents[1] / "runtime").rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()


@cache
def _processor() -> str:
    """What this machine's processor can do: its code may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features")
    return "".join(sorted({line for line in lines if line.startswith(wanted)}))
