"""Writes the table of words in sagemaker.md from the code: python -m docs.sagemaker"""

from __future__ import annotations

import re
from pathlib import Path

from trcomp.backends.sagemaker_fields import FIELDS, NOT_SENT

PAGE = Path(__file__).with_name("sagemaker.md")


def page(text: str) -> str:
    """The page with its table as the code has it now."""
    section = f"<!-- begin words -->\n{_table()}\n<!-- end words -->"
    pattern = r"<!-- begin words -->\n.*?<!-- end words -->"
    text, count = re.subn(pattern, lambda _: section, text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{PAGE.name}: got {count} tables of words; one is needed")
    return text


def _table() -> str:
    lines = ["| word | field of CreateTrainingJob | |", "|---|---|---|"]
    lines += [f"| `{field.word}` | `{field.path}` | {field.note} |" for field in FIELDS]
    lines += [f"| none | `{path}` | {reason} |" for path, reason in NOT_SENT.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
