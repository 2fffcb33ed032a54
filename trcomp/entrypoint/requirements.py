"""The script's requirements.txt, installed once per host before any worker starts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from trcomp.entrypoint.supervisor import Worker

NAME = "requirements.txt"
WHAT = f"pip, installing {NAME},"
"""The subject of the sentence that says how it failed."""


def installer(code: Path, environ: Mapping[str, str], log: Path | None = None) -> Worker | None:
    """The process that installs the requirements, or None if there are none.

    pip's own settings (PIP_INDEX_URL, PIP_FIND_LINKS, …) reach it through the environment.

    Args:
        code: The directory of the script.
        environ: The job's environment.
        log: Where pip's output is kept.
    """
    path = code / NAME
    if not path.is_file() or not any(_names_a_package(line) for line in _lines(path)):
        return None
    command = (sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input")
    return Worker(None, (*command, "-r", NAME), environ, code, prefix=b"[pip] ", log=log)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def _names_a_package(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")
