"""Checks of where things are kept: shared memory, jobs, executables, temporary files."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from trcomp import flags, s3
from trcomp.backends.directory import jobs_directory
from trcomp.doctor.findings import Asked, Check, Finding, ok, problem, size_text, warning
from trcomp.env import executables

_SHM = Path("/dev/shm")
_MIB, _GIB = 1024**2, 1024**3
_LITTLE_SHM_BYTES = 1 * _GIB
_LITTLE_BYTES, _TOO_LITTLE_BYTES = 5 * _GIB, 100 * _MIB
_FEW_FILES = 10_000


@dataclass(frozen=True)
class Place:
    """A directory, or the nearest one above it that exists.

    Attributes:
        path: The directory that is meant.
        error: Why nothing can be written there, empty if it can.
        total_bytes: Of its file system.
        free_bytes: Of its file system, for this user.
        free_files: How many files more it can hold; None where it does not count them.
        in_container: Whether this process is in one.
    """

    path: str
    error: str = ""
    total_bytes: int = 0
    free_bytes: int = 0
    free_files: int | None = None
    in_container: bool = False


def place(path: Path) -> Place:
    """What a directory has room for. A file is written there, and none is left."""
    try:
        existing = next(above for above in [path, *path.parents] if above.exists())
        with tempfile.TemporaryFile(dir=existing) as trial:
            trial.write(b"trcomp")
        there = os.statvfs(existing)
    except OSError as error:
        return Place(str(path), error.strerror or str(error))
    return Place(
        str(path),
        total_bytes=there.f_blocks * there.f_frsize,
        free_bytes=there.f_bavail * there.f_frsize,
        free_files=there.f_favail if there.f_files else None,
        in_container=any(map(os.path.exists, ("/.dockerenv", "/run/.containerenv"))),
    )


def read_shm(asked: Asked) -> Place:
    """Shared memory."""
    return place(_SHM) if _SHM.is_dir() else Place(str(_SHM), "there is no such directory")


def read_jobs(asked: Asked) -> Place:
    """Where job directories live."""
    return place(jobs_directory())


def read_cache(asked: Asked) -> Place | str:
    """Where executables are kept; "off" or the S3 URL where none are kept here."""
    kept = executables.kept_at(os.environ)
    return kept if kept == executables.OFF or s3.is_url(kept) else place(Path(kept).absolute())


def read_temporary(asked: Asked) -> Place:
    """Where temporary files go."""
    try:
        return place(Path(tempfile.gettempdir()))
    except OSError as error:
        return Place(os.environ.get("TMPDIR") or "/tmp", error.strerror or str(error))


def judge_shm(shm: Place, asked: Asked) -> Finding:
    """Whether data loader workers and NCCL have room in shared memory."""
    larger = (
        "Start the container with --shm-size 8g."
        if shm.in_container
        else "Mount it larger: `sudo mount -o remount,size=8g /dev/shm`."
    )
    if shm.error:
        return problem(f"{shm.path}: {shm.error}.", larger)
    found = f"{size_text(shm.free_bytes)} of {size_text(shm.total_bytes)} free"
    if shm.free_bytes < _LITTLE_SHM_BYTES:
        return warning(
            f"{found}: data loader workers hand over batches there, and die where it is full.",
            larger if shm.total_bytes < 2 * _LITTLE_SHM_BYTES else "`ls -l /dev/shm` shows whose.",
        )
    return ok(found)


def judge_jobs(there: Place, asked: Asked) -> Finding:
    """Whether jobs on this machine have room."""
    return _room(there, f"or name another place in {flags.HOME.name}")


def judge_cache(there: Place | str, asked: Asked) -> Finding:
    """Whether executables have room."""
    if isinstance(there, str):
        return ok("off" if there == executables.OFF else f"{there}, for jobs")
    return _room(there, f"or name another place in {flags.CACHE.name}, `off` for none")


def judge_temporary(there: Place, asked: Asked) -> Finding:
    """Whether temporary files have room."""
    return _room(there, "or name another place in TMPDIR")


def _room(there: Place, otherwise: str) -> Finding:
    if there.error:
        return problem(
            f"Nothing can be written to {there.path}: {there.error}.",
            f"Make it a directory that you may write to, {otherwise}.",
        )
    found = f"{there.path}, {size_text(there.free_bytes)} free"
    fix = f"Free some (`df -h {there.path}`), {otherwise}."
    if there.free_bytes < _TOO_LITTLE_BYTES:
        return problem(f"Full: {found}.", fix)
    if there.free_files is not None and there.free_files < _FEW_FILES:
        few = f"{found}, and room for {there.free_files} files only"
        return warning(f"{few}.", f"Remove files (`df -i {there.path}`), {otherwise}.")
    if there.free_bytes < _LITTLE_BYTES:
        return warning(f"Little room: {found}.", fix)
    return ok(found)


_COMPLAINS = "nothing can be written there, less than 5 GiB are free, or few files fit"

CHECKS = (
    Check("shared memory", read_shm, judge_shm, "/dev/shm", "less than 1 GiB of it is free"),
    Check("jobs", read_jobs, judge_jobs, f"where jobs live, {flags.HOME.name}", _COMPLAINS),
    Check(
        "executables",
        read_cache,
        judge_cache,
        f"where they are kept, {flags.CACHE.name}",
        _COMPLAINS,
    ),
    Check("temporary files", read_temporary, judge_temporary, "where they go, TMPDIR", _COMPLAINS),
)
