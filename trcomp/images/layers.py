"""Within a build of the image: the files of each step of pip, as trees that become layers.

Runs on the image's Python, before trcomp is there: layers.py list NAME, layers.py copy NAME...
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

VENV = Path("/opt/venv")
KEPT = Path("opt/venv/layers")
"""Where each list lies in the image. So no layer is empty: Docker 20.10 fails on two that are."""
LISTS = Path("/tmp/lists")
LAYERS = Path("/tmp/layers")


def write_list(name: str) -> None:
    """Write which files have come since the last list; a step may have brought none."""
    LISTS.mkdir(exist_ok=True)
    known = {line for path in LISTS.iterdir() for line in path.read_text().splitlines()}
    new = sorted(set(_files(VENV)) - known)
    (LISTS / name).write_text("".join(f"{path}\n" for path in new))


def copy(name: str) -> None:
    """Copy the files of a list into a tree of their own.

    To move them would take minutes: overlayfs first copies each, and waits for the disk.
    """
    layer, files = LAYERS / name, (LISTS / name).read_text()
    (layer / KEPT).mkdir(parents=True)
    (layer / KEPT / f"{name}.txt").write_text(files)
    for line in files.splitlines():
        # A later step may have replaced a package by another version.
        if os.path.lexists(line):
            target = layer / line.removeprefix("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(line, target, follow_symlinks=False)


def _files(root: Path) -> Iterator[str]:
    for directory, folders, names in os.walk(root):
        links = [name for name in folders if os.path.islink(os.path.join(directory, name))]
        for name in [*names, *links]:
            yield os.path.join(directory, name)


if __name__ == "__main__":
    act = {"list": write_list, "copy": copy}[sys.argv[1]]
    for argument in sys.argv[2:]:
        act(argument)
