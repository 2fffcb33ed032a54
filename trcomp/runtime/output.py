"""Where a worker leaves files for its user, beside the report."""

from __future__ import annotations

from pathlib import Path

from trcomp import flags


def folder(name: str) -> Path:
    """output/data/NAME of the job; outside a job a directory of the working directory."""
    report = flags.REPORT_DIR.get()
    return Path(report).parent / name if report else Path(f"trcomp-{name}")
