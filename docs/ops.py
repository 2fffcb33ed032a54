"""Writes the page of operators from what `make opinfo` found: python -m docs.ops [RUN.json ...]

Of several runs, as of some dtypes each or of operators that were mended, the last that has an
operator, dtype and check tells of it.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from tests.runtime.opinfo_failures import FAILING, Reason

PAGE = Path(__file__).with_name("ops.md")
RUN = Path("build/opinfo.json")
_NOTE = "<!-- Written by docs/ops.py from a run of `make opinfo`; do not edit. -->"
STATES = {
    "lowered": "XLA computes it, by rules of trcomp's own.",
    "decomposed": "torch makes it of operators that are lowered.",
    "fallback": "torch computes some of it on the CPU: right, but a sync and two copies.",
    "failing": "Some samples differ or are refused, for the reason given.",
    "untried": "torch has no sample of it that the CPU can compute.",
}
Row = dict[str, Any]


def state(rows: list[Row]) -> str:
    """One of `STATES`: the least that any sample of an operator had."""
    rows = [row for row in rows if row["check"] != "error"]
    for name, key in (
        ("failing", "wrong"),
        ("fallback", "fallbacks"),
        ("decomposed", "decomposed"),
    ):
        if any(row[key] for row in rows):
            return name
    return "lowered"


def note(op: str, rows: list[Row]) -> str:
    """Which samples differ and why; which aten operators have no rule."""
    differing = [
        f"{check}{of_dtypes(reason)}: {reason.text}"
        for (name, check), reason in sorted(FAILING.items())
        if name == op
    ]
    served = sorted({f"`{name}`" for row in rows for name in row["fallbacks"] + row["decomposed"]})
    return " ".join([*differing, ", ".join(served)]).strip()


def of_dtypes(reason: Reason) -> str:
    """The dtypes of the samples that differ, in words; nothing for all."""
    return f" of {' and '.join(reason.dtypes)}" if reason.dtypes else ""


def merged(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Several runs as one; `limit` becomes the least that any run had for each dtype."""
    rows = {
        (row["op"], row["dtype"], row["check"]): row for run in runs for row in run["rows"]
    }.values()
    limits: dict[str, int | None] = {}
    figures: dict[str, dict[str, list[int]]] = {}
    for run in runs:
        for dtype in run["figures"]:
            given = [run["limit"], limits.get(dtype)]
            limits[dtype] = min((limit for limit in given if limit is not None), default=None)
            figures.setdefault(dtype, {check: [0, 0] for check in run["figures"][dtype]})
    for row in rows:
        sums = figures[row["dtype"]][row["check"]]
        sums[0] += row["samples"] - len(row["wrong"])
        sums[1] += row["samples"]
    untried = set.intersection(*(set(run["untried"]) for run in runs))
    return runs[-1] | {
        "figures": figures,
        "limit": limits,
        "rows": list(rows),
        "untried": sorted(untried),
    }


def amount(limits: dict[str, int | None]) -> str:
    """How many samples of each operator and check were tried."""
    whole = [dtype for dtype, limit in limits.items() if limit is None]
    least = {limit for limit in limits.values() if limit is not None}
    if not least:
        return "every sample of each operator, dtype and check"
    part = f"the first {min(least)} samples of each operator, dtype and check"
    return f"every sample in {', '.join(whole)}, {part} in the others" if whole else part


def page(run: dict[str, Any]) -> str:
    """The page as Markdown."""
    by_op: dict[str, list[Row]] = defaultdict(list)
    for row in run["rows"]:
        by_op[row["op"]].append(row)
    count = Counter(state(rows) for rows in by_op.values())
    count["untried"] = len(run["untried"])
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    lines = ["# Operators", "", _NOTE, ""]
    lines += [
        "PyTorch's own samples of its operators (`op_db`), on the device against the CPU:",
        f"{amount(run['limit'])}.",
        f"Run on {run['date']} with {versions}.",
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
    others = ", ".join(f"`{op}`" for op in sorted(by_op) if any(r["strides"] for r in by_op[op]))
    lines += ["", "## Strides", ""]
    lines += [f"Dense results lie in memory as the CPU's do, except those of: {others or 'none'}."]
    lines += ["", "## Every operator", "", "| operator | state | note |", "|---|---|---|"]
    for op in sorted(by_op):
        lines.append(
            f"| `{op}` | {state(by_op[op])} | {note(op, by_op[op])} |".replace("|  |", "| |")
        )
    lines += [f"| `{op}` | untried | |" for op in run["untried"]]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page."""
    paths = [Path(name) for name in sys.argv[1:]] or [RUN]
    for path in paths:
        if not path.exists():
            sys.exit(f"{path} is missing: run `make opinfo` first")
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    PAGE.write_text(page(merged(runs)), encoding="utf-8")


if __name__ == "__main__":
    main()
