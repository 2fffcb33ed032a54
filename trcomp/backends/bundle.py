"""The code's files as one archive: equal files make equal archives, which are stored once."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, cast

from trcomp.backends.base import FileCopy
from trcomp.errors import Problem

NAME = "sourcedir.tar.gz"
LARGEST_BYTES = 500 * 2**20
"""Of all files together. Code is smaller; what is larger is data, a model or an environment."""
_TOLD = 10


def problems(files: Sequence[FileCopy]) -> list[Problem]:
    """What is wrong with sending these files to another machine."""
    total = sum(file.size_bytes for file in files)
    if total <= LARGEST_BYTES:
        return []
    largest = sorted(files, key=lambda file: -file.size_bytes)[:_TOLD]
    names = ", ".join(f"{file.destination} ({_mib(file.size_bytes)})" for file in largest)
    allowed = (
        f"at most {_mib(LARGEST_BYTES)} of code; the largest files are {names}. List in "
        ".trcompignore what the script does not need, and give data as inputs."
    )
    return [Problem("source_dir", f"{_mib(total)} in {len(files)} files", allowed)]


def digest(files: Sequence[FileCopy]) -> str:
    """A name for what the files hold: their names, contents and whether each can be executed.

    Raises:
        OSError: A file cannot be read, or changed its size since it was listed.
    """
    sink = _Digest(None)
    _write(files, sink)
    return sink.sha256.hexdigest()


def write(files: Sequence[FileCopy], target: IO[bytes]) -> str:
    """Write the archive, compressed, and give its `digest`.

    Raises:
        OSError: A file cannot be read, or changed its size since it was listed.
    """
    # No time and no name in the header: they would differ where the files do not.
    with gzip.GzipFile("", "wb", fileobj=target, mtime=0) as stream:
        sink = _Digest(stream)
        _write(files, sink)
    return sink.sha256.hexdigest()


class _Digest:
    """Where an archive is written to: hashes it, and passes it on if there is somewhere to."""

    def __init__(self, stream: gzip.GzipFile | None) -> None:
        self.sha256 = hashlib.sha256()
        self._stream = stream

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        return len(data) if self._stream is None else self._stream.write(data)


def _write(files: Sequence[FileCopy], sink: _Digest) -> None:
    with tarfile.open(fileobj=cast("IO[bytes]", sink), mode="w|") as archive:
        for file in sorted(files, key=lambda file: file.destination):
            entry = tarfile.TarInfo(file.destination)
            entry.size = file.size_bytes
            entry.mode = 0o755 if _executable(file.source) else 0o644
            with file.source.open("rb") as stream:
                archive.addfile(entry, stream)


def _executable(path: Path) -> bool:
    return bool(path.stat().st_mode & 0o100)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.1f} MiB"
