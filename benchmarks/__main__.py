"""`python -m benchmarks [NAME ...]`: runs benchmarks and writes their figures beside this file.

A run that options limit writes into build/benchmarks instead: the pages show whole runs alone.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import inspect
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from trcomp import flags

NAMES = (
    *("training_step", "recording", "compiled", "step"),
    *("warm_start", "loader", "scaling", "launch_overhead", "log_follow"),
    "simulation",
)
RESULTS = Path(__file__).parent / "results"
_LIMITED = Path(__file__).parents[1] / "build" / "benchmarks"


def _machine() -> dict[str, object]:
    from importlib.metadata import version

    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "jax", "jaxlib", "transformers")},
    }


def _arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--models", nargs="+", help="measure these alone; a beginning will do")
    parser.add_argument("--peers", nargs="+", help="with these contestants alone")
    parser.add_argument("--minutes", type=float, help="what training_step may take in all")
    return parser.parse_args(given)


def main(given: list[str]) -> int:
    """Run the named benchmarks, all of them by default."""
    words = vars(_arguments(given))
    names = words.pop("names") or NAMES
    limits: dict[str, Any] = {word: value for word, value in words.items() if value is not None}
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 64
    runs = {name: importlib.import_module(f"benchmarks.{name}").main for name in names}
    for name, run in runs.items():
        for word in set(limits) - set(inspect.signature(run).parameters):
            print(f"{name} has no option --{word}", file=sys.stderr)
            return 64
    results = _LIMITED if limits else RESULTS
    results.mkdir(parents=True, exist_ok=True)
    os.environ[flags.CACHE.name] = "off"  # Every run compiles, whatever ran before.
    for name, run in runs.items():
        print(f"== {name}", flush=True)
        rows = run(**limits)
        path = results / f"{name}.json"
        path.write_text(json.dumps({"machine": _machine(), "rows": rows}, indent=1) + "\n")
        print(f"-> {path.relative_to(Path.cwd())}" if limits else f"-> {path.name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
