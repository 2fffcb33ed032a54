"""`python -m benchmarks [NAME ...]`: runs benchmarks and writes their figures beside this file."""

from __future__ import annotations

import datetime
import importlib
import json
import os
import platform
import sys
from pathlib import Path

from trcomp import flags

NAMES = ("training_step", "recording", "compiled", "warm_start")
RESULTS = Path(__file__).parent / "results"


def _machine() -> dict[str, object]:
    from importlib.metadata import version

    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "jax", "jaxlib", "transformers")},
    }


def main(names: list[str]) -> int:
    """Run the named benchmarks, all of them by default."""
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 64
    RESULTS.mkdir(exist_ok=True)
    os.environ[flags.CACHE.name] = "off"  # Every run compiles, whatever ran before.
    for name in names or NAMES:
        print(f"== {name}", flush=True)
        rows = importlib.import_module(f"benchmarks.{name}").main()
        path = RESULTS / f"{name}.json"
        path.write_text(json.dumps({"machine": _machine(), "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
