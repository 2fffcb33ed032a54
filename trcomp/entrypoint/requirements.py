"""The script's requirements.txt, installed once per host before any worker starts."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import tempfile
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
    # -P: the script's own files must not stand in for the modules that pip imports.
    command = (sys.executable, "-P", "-m", "trcomp.entrypoint.requirements")
    return Worker(None, command, environ, code, prefix=b"[pip] ", log=log)


def main() -> None:
    """Become pip, once no other host of this machine installs into the same place."""
    key = hashlib.sha256(f"{os.getuid()} {sys.prefix}".encode()).hexdigest()[:16]
    lock = os.open(f"{tempfile.gettempdir()}/trcomp-pip-{key}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.set_inheritable(lock, True)  # pip holds it to its end.
    options = ("--disable-pip-version-check", "--no-input", "-r", NAME)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "pip", "install", *options])


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def _names_a_package(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


if __name__ == "__main__":
    main()
