"""Writes the table in doctor.md from the code: python -m docs.doctor"""

from __future__ import annotations

import re
from pathlib import Path

from trcomp.doctor import CHECKS

PAGE = Path(__file__).with_name("doctor.md")


def page(text: str) -> str:
    """The page with its table as the code has it now."""
    rows = ["| check | looks at | warning or problem, if |", "|---|---|---|"]
    rows += [f"| {check.name} | {check.looks_at} | {check.complains} |" for check in CHECKS]
    section = "\n".join(["<!-- begin checks -->", *rows, "<!-- end checks -->"])
    pattern = r"<!-- begin checks -->\n.*?<!-- end checks -->"
    return re.sub(pattern, lambda _: section, text, flags=re.DOTALL)


def main() -> None:
    """Write the page anew."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
