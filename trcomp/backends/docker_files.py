"""What a job's containers have mounted: places for its data, and trcomp for images without it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import trcomp
from trcomp.backends.docker_plan import DockerPlan, Mount
from trcomp.backends.local_plan import HostPlan, LocalPlan
from trcomp.contract import DEFAULT_BASE

PACKAGE = "/trcomp/package"
"""Where a container that may lack trcomp has it: bin/train, and site/ for Python's path."""
SITE = f"{PACKAGE}/site"

_TRAIN = """\
#!/bin/sh
# Started where the image has no `train` of its own: trcomp's entrypoint, on the image's Python.
for python in python3 python; do
    command -v "$python" > /dev/null || continue
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "trcomp needs Python 3.11 or newer; the image's $python is $("$python" -V 2>&1)." >&2
        exit 69
    fi
    if ! "$python" -P -c 'import trcomp' 2> /dev/null; then
        export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}{SITE}"
    fi
    exec "$python" -P -m trcomp.entrypoint
done
echo "The image has neither 'train' nor Python on its PATH; trcomp needs one of them." >&2
exit 69
"""


def place_data(plan: LocalPlan, host: HostPlan) -> None:
    """Make the places of this machine that a host's mounts need: none is made by the engine.

    Raises:
        OSError: Something cannot be written.
    """
    assert isinstance(plan, DockerPlan)
    (container,) = (found for found in plan.hosts if found.name == host.name)
    for mount in container.mounts:
        # Inside /opt/ml, which is a mount itself, the engine would make it, and own it.
        inside = Path(mount.target).is_relative_to(DEFAULT_BASE)
        point = host.root / Path(mount.target).relative_to(DEFAULT_BASE) if inside else None
        if mount.source.is_file():
            if point is not None:
                point.parent.mkdir(parents=True, exist_ok=True)
                point.touch()
            continue
        mount.source.mkdir(parents=True, exist_ok=True)
        if point is not None:
            point.mkdir(parents=True, exist_ok=True)


def package_mounts(directory: Path) -> tuple[Mount, ...]:
    """What shows a container this trcomp, read-only.

    Args:
        directory: The job's.
    """
    package = Path(trcomp.__file__).parent
    return (
        Mount(source=directory / "package", target=PACKAGE, read_only=True),
        Mount(source=package, target=f"{SITE}/trcomp", read_only=True),
    )


def write_package(plan: LocalPlan) -> None:
    """Write what stands around the package: its command, and its entry points for torch.

    Raises:
        OSError: Something cannot be written.
    """
    root = plan.directory / "package"
    (root / "site" / "trcomp").mkdir(parents=True)
    (root / "bin").mkdir()
    train = root / "bin" / "train"
    train.write_text(_TRAIN.replace("{SITE}", SITE), encoding="utf-8")
    train.chmod(0o755)
    info = root / "site" / f"trcomp-{trcomp.__version__}.dist-info"
    info.mkdir()
    head = f"Metadata-Version: 2.1\nName: trcomp\nVersion: {trcomp.__version__}\n"
    (info / "METADATA").write_text(head, encoding="utf-8")
    (info / "entry_points.txt").write_text(_entry_points(), encoding="utf-8")


def _entry_points() -> str:
    try:
        return distribution("trcomp").read_text("entry_points.txt") or ""
    except PackageNotFoundError:  # Run from a source tree that is not installed.
        return ""
