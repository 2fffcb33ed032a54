"""Writes the page of operators from what `make opinfo` found: python -m docs.ops"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from tests.runtime.opinfo_failures import FAILING

PAGE = Path(__file__).with_name("ops.md")
RUN = Path("build/opinfo.json")
_NOTE = "<!-- Written by docs/ops.py from a run of `make opinfo`; do not edit. -->"
STATES = {
    "lowered": "XLA computes it, by rules of trcomp's own.",
    "decomposed": "torch makes it of operators that are lowered.",
    "fallback": "torch computes some of it on the CPU: right, but a sync and two copies.",
    "failing": "Some samples differ or are refused, for the reason given.",
}
Row = dict[str, Any]


def state(rows: list[Row]) -> str:
    """One of `STATES`: the least that any sample of an operator had."""
    for name, key in (
        ("failing", "wrong"),
        ("fallback", "fallbacks"),
        ("decomposed", "decomposed"),
    ):
        if any(row[key] for row in rows):
            return name
    return "lowered"


def note(op: str, rows: list[Row]) -> str:
    """Why an operator is not lowered: a reason, or the aten operators without a rule."""
    reasons = sorted({reason for (name, _), reason in FAILING.items() if name == op})
    failing = any(row["wrong"] for row in rows)
    served = sorted({f"`{name}`" for row in rows for name in row["fallbacks"] + row["decomposed"]})
    return " ".join(reasons) if failing else ", ".join(served)


def page(run: dict[str, Any]) -> str:
    """The page as Markdown."""
    by_op: dict[str, list[Row]] = defaultdict(list)
    for row in run["rows"]:
        by_op[row["op"]].append(row)
    count = Counter(state(rows) for rows in by_op.values())
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    amount = f"the first {run['limit']} samples" if run["limit"] else "every sample"
    lines = ["# Operators", "", _NOTE, ""]
    lines += [
        "PyTorch's own samples of its operators (`op_db`), on the device against the CPU:",
        f"{amount} of each operator, dtype and check. Run on {run['date']} with {versions}.",
        "",
        "| state | operators | meaning |",
        "|---|---|---|",
        *(f"| {name} | {count[name]} | {meaning} |" for name, meaning in STATES.items()),
        "",
        "## Samples that are right",
        "",
        "| dtype | check | right | of | share |",
        "|---|---|---|---|---|",
    ]
    for dtype, checks in run["figures"].items():
        for check, (right, total) in checks.items():
            share = f"{100 * right / total:.2f} %"
            lines.append(f"| {dtype} | {check} | {right} | {total} | {share} |")
    lines += ["", "## Every operator", "", "| operator | state | note |", "|---|---|---|"]
    for op in sorted(by_op):
        lines.append(
            f"| `{op}` | {state(by_op[op])} | {note(op, by_op[op])} |".replace("|  |", "| |")
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page."""
    if not RUN.exists():
        sys.exit(f"{RUN} is missing: run `make opinfo` first")
    PAGE.write_text(page(json.loads(RUN.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
