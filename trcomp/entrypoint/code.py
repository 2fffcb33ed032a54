"""The job's code, into code/: out of an archive or directory that came as a channel, or from S3."""

from __future__ import annotations

import os
import sys
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from trcomp import s3
from trcomp.contract import Contract, Paths
from trcomp.entrypoint.supervisor import Worker
from trcomp.errors import ContractError

LARGEST_BYTES = 16 * 2**30
"""Of all files that an archive of code unpacks to: a small one can be made to fill any disk."""
MOST_FILES = 500_000
WHAT = "Fetching the code"


def fetcher(
    contract: Contract, paths: Paths, environ: Mapping[str, str], scratch: Path
) -> Worker | None:
    """The process that fetches code which lies in S3; None if none does.

    trcomp's own jobs bring their code as a channel; those of SageMaker's SDK name an archive.

    Raises:
        ContractError: The code lies neither there nor here.
    """
    submitted = contract.settings.submit_directory
    if submitted is None or "://" not in submitted or _is_there(paths):
        return None
    if not s3.is_url(submitted) or s3.faults(submitted):
        raise ContractError(
            f"The job's code is at {submitted}, and {paths.code} is empty.",
            "Code comes as a channel, as an archive at s3://, or lies there already.",
        )
    # -P: the script's own files must not stand in for the modules that the AWS SDK imports.
    argv = (
        sys.executable,
        "-P",
        "-m",
        "trcomp.entrypoint.fetch",
        submitted,
        str(_fetched(scratch)),
    )
    return Worker(None, argv, environ, paths.root, prefix=b"[code] ")


def unpack(contract: Contract, paths: Paths, scratch: Path) -> None:
    """Put the job's code where it belongs, unless it is there already.

    Raises:
        ContractError: There is no such archive, or it holds what code does not.
    """
    submitted = contract.settings.submit_directory
    if submitted is None or _is_there(paths):
        return
    place = _fetched(scratch) if "://" in submitted else paths.local(submitted)
    try:
        if place.is_dir():
            _copy(place, paths.code)
            return
        with tarfile.open(place) as members:
            total = 0
            for number, member in enumerate(members, start=1):
                total += member.size
                if total > LARGEST_BYTES or number > MOST_FILES:
                    raise ContractError(
                        f"The job's code unpacks to more than {LARGEST_BYTES >> 30} GiB or "
                        f"{MOST_FILES} files, which is refused.",
                        "Give data as channels.",
                    )
                _extract(members, member, paths.code)
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise ContractError(f"The job's code, {place}, cannot be unpacked: {error}") from error


def _is_there(paths: Paths) -> bool:
    return paths.code.is_dir() and any(paths.code.iterdir())


def _fetched(scratch: Path) -> Path:
    return scratch / "code.tar.gz"


def _copy(source: Path, code: Path) -> None:
    for directory, _, names in os.walk(source):
        here = code / Path(directory).relative_to(source)
        here.mkdir(parents=True, exist_ok=True)
        for name in names:
            (here / name).write_bytes(Path(directory, name).read_bytes())


def _extract(members: tarfile.TarFile, member: tarfile.TarInfo, code: Path) -> None:
    # Links and devices have no place in an archive of code, nor has a way out of its directory.
    target = Path(os.path.normpath(code / member.name))
    if not target.is_relative_to(code) or not (member.isreg() or member.isdir()):
        raise ContractError(f"The job's code holds {member.name!r}, which is refused.")
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    stream = members.extractfile(member)
    assert stream is not None
    with stream, target.open("wb") as file:
        while chunk := stream.read(1 << 20):
            file.write(chunk)
    target.chmod(0o755 if member.mode & 0o100 else 0o644)
