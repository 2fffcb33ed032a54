"""Checks of what joins GPUs and hosts: NCCL, Elastic Fabric Adapters, lockable memory."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from ctypes.util import find_library
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from trcomp.doctor.findings import Asked, Check, Finding, ok, problem, size_text, warning
from trcomp.env import gpus

_NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
# Where AWS's installer puts libfabric and the plugin that lets NCCL use it.
_LIBFABRIC = ("/opt/amazon/efa/lib", "/opt/amazon/efa/lib64")
_PLUGIN = ("/opt/amazon/ofi-nccl/lib", "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu")
_PLUGINS = ("libnccl-net.so", "libnccl-net-ofi.so")
_EFA_GUIDE = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html"


@dataclass(frozen=True)
class Fabric:
    """What ranks on GPUs reach each other by.

    Attributes:
        num_gpus: Those that workers may use.
        nccl: Its version, or "the system's"; empty if it is nowhere.
        num_efa: Elastic Fabric Adapters.
        has_libfabric: Whether there is a libfabric, which drives the adapters.
        has_plugin: Whether NCCL has the plugin for libfabric.
        lockable_bytes: How much memory a process may lock; None: all.
    """

    num_gpus: int = 0
    nccl: str = ""
    num_efa: int = 0
    has_libfabric: bool = False
    has_plugin: bool = False
    lockable_bytes: int | None = None


def read(asked: Asked) -> Fabric:
    """What ranks on this machine reach each other by."""
    path = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return Fabric(
        num_gpus=len(gpus.found(os.environ)),
        nccl=_nccl(),
        num_efa=gpus.efa_devices(),
        has_libfabric=_lies_in([*path, *_LIBFABRIC], ["libfabric.so.1", "libfabric.so"])
        or find_library("fabric") is not None,
        has_plugin=_lies_in([*path, *_PLUGIN], _PLUGINS),
        lockable_bytes=None if soft == resource.RLIM_INFINITY else soft,
    )


def judge_nccl(fabric: Fabric, asked: Asked) -> Finding:
    """Whether ranks on GPUs have NCCL."""
    if fabric.nccl:
        return ok(fabric.nccl)
    if not (fabric.num_gpus or asked.gpu):
        return ok("not installed; without a GPU none is needed")
    return warning("Not found: more than one rank on GPUs needs it.", "pip install 'trcomp[cuda]'")


def judge_efa(fabric: Fabric, asked: Asked) -> Finding:
    """Whether NCCL would use the adapters that there are."""
    if not fabric.num_efa:
        return ok("none")
    lacking = [
        name
        for name, there in (
            ("libfabric", fabric.has_libfabric),
            ("NCCL's plugin for it (aws-ofi-nccl)", fabric.has_plugin),
        )
        if not there
    ]
    found = f"{fabric.num_efa} of them"
    if lacking:
        return warning(
            f"{found}, without {' and '.join(lacking)}: hosts would talk over TCP, far slower.",
            f"Run AWS's EFA installer in the image or on the host: {_EFA_GUIDE}",
        )
    return ok(found)


def judge_lockable(fabric: Fabric, asked: Asked) -> Finding:
    """Whether adapters may lock the memory that they send from."""
    if fabric.lockable_bytes is None:
        return ok("unlimited")
    found = size_text(fabric.lockable_bytes)
    if fabric.num_efa:
        return problem(
            f"{found}; Elastic Fabric Adapters lock all that they send.",
            "Set `* - memlock unlimited` in /etc/security/limits.d, in a container "
            "--ulimit memlock=-1.",
        )
    return ok(f"{found}; more is needed for Elastic Fabric Adapters only")


def _nccl() -> str:
    for name in _NCCL:
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return "the system's" if find_library("nccl") else ""


def _lies_in(directories: Iterable[str], names: Iterable[str]) -> bool:
    return any((Path(place) / name).exists() for place in directories if place for name in names)


CHECKS = (
    Check(
        "NCCL",
        read,
        judge_nccl,
        "the wheel that JAX's CUDA plugin brings, or the system's library",
        "there are GPUs, and it is nowhere",
    ),
    Check(
        "EFA",
        read,
        judge_efa,
        "Elastic Fabric Adapters, libfabric, and NCCL's plugin for it",
        "there are adapters, and NCCL would not use them",
    ),
    Check(
        "locked memory",
        read,
        judge_lockable,
        "the limit `ulimit -l`",
        "there are Elastic Fabric Adapters and it is not unlimited",
    ),
)
