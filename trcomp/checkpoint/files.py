"""The files of checkpoints: each whole or not there, found again by their steps, old ones removed.

step-000000300.pt                     what all ranks share, in one file
step-000000300.rank-1-of-2.pt         a rank's own part
.step-000000300.pt.rank-0.part        being written; never looked at
step-000000300.pt.broken              was found damaged, or other ranks lack their parts
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_NAME = re.compile(r"step-(\d+)(?:\.rank-(\d+)-of-(\d+))?\.pt")


@dataclass(frozen=True)
class Files:
    """A rank's view of a directory of checkpoints.

    Attributes:
        directory: Where they lie.
        rank: This rank.
        parts: In how many files a checkpoint is; 1: one that all ranks share.
    """

    directory: Path
    rank: int
    parts: int

    def path(self, step: int) -> Path:
        """The file of a step that concerns this rank."""
        part = f".rank-{self.rank}-of-{self.parts}" if self.parts > 1 else ""
        return self.directory / f"step-{step:09d}{part}.pt"

    def steps(self) -> list[int]:
        """The steps of which there is a file, the newest first."""
        found = (_NAME.fullmatch(path.name) for path in self._entries())
        own = [int(name[1]) for name in found if name and self.path(int(name[1])).name == name[0]]
        return sorted(own, reverse=True)

    def others(self) -> list[str]:
        """Names of checkpoints that were made by another number of ranks, or in another way."""
        names = [_NAME.fullmatch(path.name) for path in self._entries()]
        return [name[0] for name in names if name and int(name[3] or 1) != self.parts]

    def write(self, step: int, state: Any) -> None:
        """Write a file that is there whole, and on the disk, or not at all.

        Raises:
            OSError: There is no room, or the directory cannot be written to.
        """
        path = self.path(step)
        self.directory.mkdir(parents=True, exist_ok=True)
        part = self._part(path)
        try:
            with part.open("wb") as stream:
                torch.save(state, stream)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(part, path)
        except BaseException:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise
        _flush_directory(self.directory)

    def read(self, step: int) -> Any:
        """What was written. Nothing in the file is run: it is tensors and plain values."""
        return torch.load(self.path(step), map_location="cpu", weights_only=True)

    def fault(self, step: int) -> str | None:
        """What is wrong with a file; None if all of it is as it was written."""
        try:
            with zipfile.ZipFile(self.path(step)) as archive:
                damaged = archive.testzip()
        except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            return str(error) or type(error).__name__
        return None if damaged is None else f"bad checksum of {damaged}"

    def set_aside(self, step: int) -> None:
        """Take a file out of the way, and keep it for who wants to look."""
        path = self.path(step)
        with suppress(FileNotFoundError):  # Another rank may have done so.
            os.replace(path, path.with_name(f"{path.name}.broken"))

    def remove_before(self, step: int, keep: int) -> None:
        """Of the files up to a step keep the newest."""
        for old in [one for one in self.steps() if one <= step][keep:]:
            self.path(old).unlink(missing_ok=True)

    def remove_parts(self) -> None:
        """Remove what this rank had begun to write when it ended."""
        for path in self._entries():
            if path.name.startswith(".step-") and path.name.endswith(f".rank-{self.rank}.part"):
                path.unlink(missing_ok=True)

    def _part(self, path: Path) -> Path:
        return path.with_name(f".{path.name}.rank-{self.rank}.part")

    def _entries(self) -> list[Path]:
        return sorted(self.directory.iterdir()) if self.directory.is_dir() else []


def _flush_directory(directory: Path) -> None:
    """Have the disk know the new name, too."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
