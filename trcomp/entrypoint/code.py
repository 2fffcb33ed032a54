"""The job's code, out of the archive that came as a channel of its own, into code/."""

from __future__ import annotations

import os
import tarfile
import zlib
from pathlib import Path

from trcomp.contract import Contract, Paths
from trcomp.errors import ContractError


def unpack(contract: Contract, paths: Paths) -> None:
    """Unpack the archive that the job names, unless the code is there already.

    Raises:
        ContractError: There is no such archive, or it holds more than files and directories.
    """
    submitted = contract.settings.submit_directory
    if submitted is None or (paths.code.is_dir() and any(paths.code.iterdir())):
        return
    if "://" in submitted:
        raise ContractError(
            f"The job's code is at {submitted}, and {paths.code} is empty.",
            "trcomp's own jobs bring the code as a channel; start the job with trcomp.",
        )
    archive = paths.local(submitted)
    try:
        with tarfile.open(archive) as members:
            for member in members:
                _extract(members, member, paths.code)
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise ContractError(f"The job's code, {archive}, cannot be unpacked: {error}") from error


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
