"""Checks of the devices: the driver, the GPUs, JAX's plugin, and a step on the xla device."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from trcomp import flags
from trcomp.doctor import software
from trcomp.doctor.findings import Asked, Check, Finding, ok, problem, size_text, warning
from trcomp.env import gpus

_QUERY = "index,name,driver_version,compute_cap,memory.total,memory.used"
_SMI_SECONDS = 30
PROBE_SECONDS = 120
"""For a few seconds' work: the machine may be busy with jobs."""
_BUSY = 0.1
"""Of a GPU's memory: more of it in use is worth a warning. JAX asks for three quarters."""

# What a CUDA plugin needs: the driver's major version and the GPU's compute capability.
# Source: JAX's installation guide, "pip installation: NVIDIA GPU (CUDA)".
_NEEDS = {"jax-cuda12-plugin": (525, 5.2), "jax-cuda13-plugin": (580, 7.5)}
_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")
_DRIVER = "Install NVIDIA's driver, 580 or newer, and restart"
_IN_CONTAINER = "in a container, start it with --gpus all"

_PROBE = """
import json, jax, torch
import trcomp.runtime as rt
devices = jax.devices()
value = float((torch.ones(2, device=rt.device()) + 1).sum())
print(json.dumps({"platform": devices[0].platform, "kind": devices[0].device_kind,
                  "num_devices": len(devices), "value": value}))
"""
_VALUE = 4.0


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver's tool describes it."""

    index: str
    name: str
    compute_capability: float
    memory_bytes: int
    used_bytes: int


@dataclass(frozen=True)
class Nvidia:
    """What there is of NVIDIA.

    Attributes:
        on_bus: GPUs that the PCI bus shows, with or without a driver.
        driver: The driver's version; empty if there is none.
        error: What the driver's tool said instead of an answer.
        gpus: What it answered; without the tool they can be counted, but not described.
        num_visible: How many of them CUDA_VISIBLE_DEVICES leaves.
        plugins: JAX's CUDA plugins by name, with their versions.
        has_jax: Whether workers could run on this machine at all.
    """

    on_bus: int = 0
    driver: str = ""
    error: str = ""
    gpus: tuple[Gpu, ...] = ()
    num_visible: int = 0
    plugins: Mapping[str, str] = field(default_factory=dict)
    has_jax: bool = True

    @property
    def present(self) -> bool:
        """Whether this machine is one with GPUs that work."""
        return bool(self.gpus or self.num_visible)


@dataclass(frozen=True)
class Trial:
    """What a process saw that imported jax and computed on the xla device; error if it could not.

    Attributes:
        tried: Whether torch and jax are there to try.
        num_gpus: How many GPUs it was to see.
    """

    tried: bool = True
    error: str = ""
    platform: str = ""
    kind: str = ""
    num_devices: int = 0
    value: float = _VALUE
    num_gpus: int = 0


def read_nvidia(asked: Asked) -> Nvidia:
    """What there is of NVIDIA, without opening a CUDA context."""
    packages = software.read(asked).packages
    found = Nvidia(
        on_bus=_on_bus(Path("/sys/bus/pci/devices")),
        num_visible=len(gpus.found(os.environ)),
        plugins={name: packages[name].version for name in software.PLUGINS if name in packages},
        has_jax="jax" in packages,
    )
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_SMI_SECONDS
        )
    except FileNotFoundError:
        return replace(found, driver=_kernel_driver(Path("/proc/driver/nvidia/version")))
    except (OSError, subprocess.SubprocessError) as error:
        return replace(found, error=str(error))
    if answer.returncode:
        return replace(found, error=" ".join((answer.stdout + answer.stderr).split()))
    return replace(found, driver=_driver(answer.stdout), gpus=parsed(answer.stdout))


def parsed(listing: str) -> tuple[Gpu, ...]:
    """The GPUs of what nvidia-smi prints for its query."""
    rows = csv.reader(listing.splitlines(), skipinitialspace=True)
    return tuple(
        Gpu(row[0], row[1], _number(row[3]), _mib(row[4]), _mib(row[5]))
        for row in rows
        if len(row) == 6
    )


def judge_driver(nvidia: Nvidia, asked: Asked) -> Finding:
    """Whether there is a driver, and whether it is new enough for JAX's plugin."""
    complain = problem if asked.gpu else warning
    if nvidia.error:
        return problem(
            f"The driver does not answer: {nvidia.error}.",
            f"{_DRIVER} the machine; {_IN_CONTAINER} on a host whose `nvidia-smi` works.",
        )
    if not nvidia.driver:
        if nvidia.on_bus:
            found = f"none, though the PCI bus shows {nvidia.on_bus} of NVIDIA's GPUs"
            return complain(f"{found}.", f"{_DRIVER}; {_IN_CONTAINER}.")
        if asked.gpu:
            fix = f"Use a machine with NVIDIA GPUs; {_IN_CONTAINER}."
            return problem("There is none, and no GPU.", fix)
        return ok("none, and no GPU: workers run on the CPU")
    for plugin, (needed, _) in _NEEDS.items():
        if plugin in nvidia.plugins and 0 < _number(nvidia.driver.split(".")[0]) < needed:
            return problem(
                f"{nvidia.driver}; {plugin} needs {needed} or newer.",
                f"Install NVIDIA's driver {needed} or newer{_older(plugin)}.",
            )
    return ok(nvidia.driver)


def judge_gpus(nvidia: Nvidia, asked: Asked) -> Finding:
    """Whether the GPUs can be used: seen, free, and not too old for JAX's plugin."""
    if not nvidia.present:
        if asked.gpu:
            return problem("There is none that works.", "See what is said of the NVIDIA driver.")
        return ok("none")
    if not nvidia.gpus:
        return ok(f"{nvidia.num_visible}; nvidia-smi, which would describe them, is not there")
    names = "; ".join(
        f"{gpu.index}: {gpu.name}, {size_text(gpu.memory_bytes)}" for gpu in nvidia.gpus
    )
    if not nvidia.num_visible:
        complain = problem if asked.gpu else warning
        fix = "Unset CUDA_VISIBLE_DEVICES, or name GPUs by number or UUID in it."
        return complain(f"CUDA_VISIBLE_DEVICES hides all of {names}.", fix)
    for plugin, (_, needed) in _NEEDS.items():
        old = [gpu for gpu in nvidia.gpus if 0 < gpu.compute_capability < needed]
        if old and plugin in nvidia.plugins:
            what = ", ".join(f"{gpu.index} has {gpu.compute_capability}" for gpu in old)
            return problem(
                f"{plugin} needs compute capability {needed}; GPU {what}.",
                f"Leave such GPUs out of CUDA_VISIBLE_DEVICES{_older(plugin)}.",
            )
    busy = [gpu for gpu in nvidia.gpus if gpu.used_bytes > _BUSY * gpu.memory_bytes]
    if busy:
        what = "; ".join(
            f"GPU {gpu.index}: {size_text(gpu.used_bytes)} of {size_text(gpu.memory_bytes)}"
            for gpu in busy
        )
        return warning(
            f"Memory is in use by others: {what}.",
            "`nvidia-smi` shows by whom. End it, or leave these GPUs out of CUDA_VISIBLE_DEVICES.",
        )
    return ok(names)


def judge_plugin(nvidia: Nvidia, asked: Asked) -> Finding:
    """Whether JAX has the one plugin that lets it use the GPUs."""
    found = nvidia.plugins
    names = ", ".join(f"{name} {version}" for name, version in found.items())
    if len(found) > 1:
        return problem(f"{names}: both want to be JAX's CUDA.", "pip uninstall jax-cuda12-plugin")
    if found:
        return ok(names)
    if not (nvidia.present or asked.gpu):
        return ok("not installed; without a GPU none is needed")
    complain = problem if nvidia.has_jax or asked.gpu else warning
    return complain("Not installed: JAX cannot use the GPUs.", "pip install 'trcomp[cuda]'")


def read_trial(asked: Asked) -> Trial:
    """Compute on the xla device, in a process of its own: this one opens no device."""
    if find_spec("torch") is None or find_spec("jax") is None:
        return Trial(tried=False)
    return tried(_PROBE, len(gpus.found(os.environ)), PROBE_SECONDS)


def tried(code: str, num_gpus: int, limit_seconds: float) -> Trial:
    """What a process printed as it ran code; why it did not, if so."""
    # A job that runs meanwhile keeps its memory and its executables.
    apart = {flags.CACHE.name: "off", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    inherited = {flag.name for flag in flags.JOB_ONLY}
    environ = {name: value for name, value in os.environ.items() if name not in inherited} | apart
    try:
        ended = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_seconds,
            env=environ,
        )
    except subprocess.TimeoutExpired:
        return Trial(error=f"no answer within {limit_seconds:.0f} s", num_gpus=num_gpus)
    except OSError as error:
        return Trial(error=str(error), num_gpus=num_gpus)
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
        return Trial(error=lines[-1].strip(), num_gpus=num_gpus)
    return Trial(**json.loads(ended.stdout.splitlines()[-1]), num_gpus=num_gpus)


def judge_trial(trial: Trial, asked: Asked) -> Finding:
    """Whether a script would train here, and on what."""
    if not trial.tried:
        return warning("Not tried: torch or jax is missing.", "pip install 'trcomp[runtime]'")
    if trial.error:
        return problem(
            f"A process that computes on it failed: {trial.error}.",
            "`python -c 'import jax; print(jax.devices())'` shows all of it, if it is JAX's; "
            "see the checks above for what does not fit.",
        )
    found = f"computes on the {trial.platform.upper()}, {trial.num_devices} x {trial.kind}"
    if trial.value != _VALUE:
        fix = "Compare with another version of jaxlib; report it to its makers."
        return problem(f"It {found}, wrongly: {trial.value} instead of {_VALUE}.", fix)
    if trial.platform == "cpu" and (trial.num_gpus or asked.gpu):
        return problem(
            f"It {found}, not on {trial.num_gpus or 'a'} GPU.",
            "Unset JAX_PLATFORMS and PJRT_DEVICE; see what is said of the driver and the plugin.",
        )
    return ok(found)


def _on_bus(root: Path) -> int:
    """GPUs of NVIDIA on the PCI bus: display and 3D controllers of vendor 10de."""
    count = 0
    for device in root.iterdir() if root.is_dir() else ():
        try:
            vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
        except OSError:
            continue
        count += vendor.strip() == "0x10de" and kind.startswith(("0x0300", "0x0302"))
    return count


def _kernel_driver(file: Path) -> str:
    """The version of the kernel's driver: containers may come without the tool that tells."""
    try:
        found = _VERSION.search(file.read_text())
    except OSError:
        return ""
    return found[0] if found else "unknown"


def _older(plugin: str) -> str:
    return ", or jax-cuda12-plugin instead" if plugin == "jax-cuda13-plugin" else ""


def _driver(listing: str) -> str:
    rows = csv.reader(listing.splitlines(), skipinitialspace=True)
    return next((row[2] for row in rows if len(row) == 6), "")


def _mib(text: str) -> int:
    return int(_number(text)) * 1024**2


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # Slices of a GPU have "[N/A]".
        return 0.0


CHECKS = (
    Check(
        "NVIDIA driver",
        read_nvidia,
        judge_driver,
        "what `nvidia-smi` says, and the PCI bus",
        "it does not answer, is missing beside a GPU, or is too old for JAX's CUDA plugin; "
        "with `--gpu`, also if there is none",
    ),
    Check(
        "GPUs",
        read_nvidia,
        judge_gpus,
        "names, memory, compute capability, CUDA_VISIBLE_DEVICES",
        "others use more than a tenth of the memory, all are hidden, or one is too old for the "
        "plugin; with `--gpu`, also if there is none",
    ),
    Check(
        "CUDA plugin",
        read_nvidia,
        judge_plugin,
        "jax-cuda12-plugin and jax-cuda13-plugin",
        "there are GPUs and no plugin, or two plugins",
    ),
    Check(
        "xla device",
        read_trial,
        judge_trial,
        "a process imports torch and jax and adds two tensors on the device",
        f"it fails, does not answer within {PROBE_SECONDS} s, or computes on the CPU of a machine "
        "with GPUs",
    ),
)
