"""The file in which a worker says why it failed; the first to write it stays.

Ranks that a script starts itself share their parent's file: the rank that raised writes first, and
the exception that then ends the parent does not replace it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from trcomp import json_fields, reserve


@dataclass(frozen=True)
class ErrorReport:
    """Why a worker failed.

    Attributes:
        time: When, by `time.monotonic`: one clock for all of a host, which nobody sets.
        rank: The rank that raised; None for a script that runs once per host.
        host: The host's name in the job.
        exception: The exception line of the traceback, such as ``ValueError: bad``.
        traceback: The whole traceback as Python prints it.
        exit_code: With which it ends by itself.
    """

    time: float
    rank: int | None
    host: str
    exception: str
    traceback: str
    exit_code: int


def write(
    path: Path,
    error: BaseException,
    *,
    rank: int | None,
    host: str,
) -> None:
    """Write why a worker failed, unless that is written already.

    A full disk must not hide the failure that is being reported, so nothing is raised.

    Args:
        path: The worker's error file.
        error: What the script raised.
        rank: The rank that raised, None for a script that runs once per host.
        host: The host's name in the job.
    """
    lines = traceback.format_exception(error)
    code = error.code & 0xFF if isinstance(error, SystemExit) and type(error.code) is int else 1
    moment, exception = time.monotonic(), exception_line(error)
    report = ErrorReport(moment, rank, host, exception, "".join(lines), code)
    text = json.dumps(asdict(report))
    try:
        _write_first(path, text)
    except OSError:
        reserve.give_back(path.parent)
        with contextlib.suppress(OSError):
            _write_first(path, text)


def _write_first(path: Path, text: str) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(text)
    # A link fails if the name is taken, and the file is whole from its first moment.
    with contextlib.suppress(FileExistsError):
        os.link(draft, path)
    draft.unlink()


def exception_line(error: BaseException) -> str:
    """What a traceback ends with, such as ``ValueError: bad``; a message may have more lines."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error}"
    return "".join(traceback.format_exception_only(error)).strip()


def read(path: Path) -> ErrorReport | None:
    """What a worker wrote, or None if it wrote nothing readable."""
    try:
        return json_fields.read(ErrorReport, path.read_bytes())
    except (OSError, ValueError):
        return None
