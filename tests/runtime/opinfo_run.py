"""Runs all of PyTorch's operator samples in shards: python -m tests.runtime.opinfo_run

Writes build/opinfo.json, which `python -m docs.ops` turns into the page of operators. Each shard is
a process of its own: its memory goes back, and what ends it ends nothing else.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

import jax
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.runtime.opinfo import CHECKS, verdicts
from tests.runtime.opinfo_failures import FAILING, is_listed
from tests.runtime.verdicts import Verdict

OUT = Path("build/opinfo.json")
DTYPES = ("float32", "bfloat16", "int64", "bool", "float16", "float64", "int32", "complex64")
NUM_SHARDS = 16
Row = dict[str, Any]


def rows(judged: Iterable[Verdict]) -> list[Row]:
    """Verdicts summed up per operator, dtype and check."""
    found: dict[tuple[str, str, str], Row] = {}
    for verdict in judged:
        row = found.setdefault(
            (verdict.op, verdict.dtype, verdict.check),
            {
                "op": verdict.op,
                "dtype": verdict.dtype,
                "check": verdict.check,
                "samples": 0,
                "wrong": [],
                "strides": 0,
                "problem": None,
                "decomposed": [],
                "fallbacks": [],
            },
        )
        row["samples"] += 1
        row["strides"] += verdict.strides is not None
        if verdict.problem is not None:
            row["wrong"].append(verdict.sample)
            row["problem"] = row["problem"] or verdict.problem
        for name in ("decomposed", "fallbacks"):
            row[name] = sorted({*row[name], *getattr(verdict, name)})
    return list(found.values())


def run_shard(shard: int, options: argparse.Namespace) -> None:
    """One shard in this process; its rows go to a file."""
    jax.config.update("jax_disable_most_optimizations", True)
    chosen = [op for op in op_db if options.ops is None or op.name in options.ops]
    ops = [op for i, op in enumerate(chosen) if i % options.shards == shard]
    dtypes = [getattr(torch, name) for name in options.dtypes]
    made = rows(verdicts(ops, dtypes, options.checks, options.limit))
    shard_file(options.out, shard).write_text(json.dumps(made), encoding="utf-8")


def shard_file(out: Path, shard: int) -> Path:
    """Where a shard leaves its rows."""
    return out.with_suffix(f".{shard}.json")


def run(options: argparse.Namespace) -> list[Row]:
    """All shards, one after the other, with a line about each."""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    every: list[Row] = []
    for shard in range(options.shards):
        start = time.monotonic()
        command = [sys.executable, "-m", "tests.runtime.opinfo_run", *sys.argv[1:]]
        done = subprocess.run([*command, "--shard", str(shard)], stderr=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"shard {shard + 1} ended with {done.returncode}:\n{done.stderr[-4000:]}")
        made = json.loads(shard_file(options.out, shard).read_text(encoding="utf-8"))
        shard_file(options.out, shard).unlink()
        every += made
        samples, wrong = sum(row["samples"] for row in made), sum(len(row["wrong"]) for row in made)
        seconds = time.monotonic() - start
        print(
            f"shard {shard + 1} of {options.shards}: {samples} samples, {wrong} wrong, "
            f"{seconds:.0f} s",
            flush=True,
        )
    return every


def unexpected(every: Iterable[Row], *, whole: bool) -> list[str]:
    """What fails without being listed and, of a whole run, what is listed without failing."""
    wrong = [row for row in every if row["wrong"]]
    lines = [
        f"{row['op']} {row['check']} fails and is not listed: {row['dtype']} sample "
        f"{row['wrong'][0]}: {row['problem']}"
        for row in wrong
        if not is_listed(row["op"], row["check"], row["dtype"])
    ]
    if whole:
        failing = {(row["op"], row["check"]) for row in wrong}
        lines += [
            f"{op} {check} is listed and does not fail: take it off the list"
            for (op, check), reason in FAILING.items()
            if reason.everywhere and (op, check) not in failing
        ]
    return lines


def figures(every: Iterable[Row]) -> dict[str, dict[str, list[int]]]:
    """Samples right and samples in all, by dtype and check."""
    total: Counter[tuple[str, str]] = Counter()
    wrong: Counter[tuple[str, str]] = Counter()
    for row in every:
        total[row["dtype"], row["check"]] += row["samples"]
        wrong[row["dtype"], row["check"]] += len(row["wrong"])
    return {
        dtype: {
            check: [total[dtype, check] - wrong[dtype, check], total[dtype, check]]
            for check in CHECKS
            if total[dtype, check]
        }
        for dtype in DTYPES
        if any(total[dtype, check] for check in CHECKS)
    }


def main() -> int:
    """Run, print the figures, write the file; 1 if the list of failures is not exact."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--shards", type=int, default=NUM_SHARDS)
    parser.add_argument("--shard", type=int, help="run this one alone, in this process")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--checks", nargs="+", choices=CHECKS, default=CHECKS)
    parser.add_argument("--limit", type=int, help="samples per operator, dtype and check")
    parser.add_argument("--ops", nargs="+", help="these alone, with their variants: after a change")
    options = parser.parse_args()
    if options.shard is not None:
        run_shard(options.shard, options)
        return 0
    every = run(options)
    found = figures(every)
    for dtype, checks in found.items():
        for check, (right, total) in checks.items():
            print(f"{dtype} {check}: {right} of {total} right ({100 * right / total:.2f} %)")
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    report = {
        "date": date.today().isoformat(),
        "versions": versions | {"jax": jax.__version__},
        "limit": options.limit,
        "figures": found,
        "untried": sorted({op.full_name for op in op_db} - {row["op"] for row in every}),
        "rows": every,
    }
    options.out.write_text(json.dumps(report), encoding="utf-8")
    limits = (options.limit, options.ops, len(options.dtypes), len(options.checks))
    whole = limits == (None, None, len(DTYPES), len(CHECKS))
    problems = unexpected(every, whole=whole)
    print("\n".join(problems) or "The list of failures is exact.")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
