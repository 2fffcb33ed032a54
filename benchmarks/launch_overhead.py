"""From `fit()` to the first line of the script, and what a worker adds to `import torch`.

    python -m benchmarks launch_overhead

The script has no imports before its first line. The same script run by Python alone is the least
that a process costs. Runs alternate.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.jobs import own_home, printed

_ROUNDS = 7
_SCRIPT = """
import time
first = time.time()
import torch
imported = time.time()
import json
print(json.dumps({"first": first, "imported": imported}), flush=True)
"""


def _python(script: Path) -> list[str]:
    done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()


_FORMS: dict[str, Callable[[Path], list[str]]] = {
    "python script.py": _python,
    "fit(), without XLA": partial(printed, enabled=False, devices=1),
    "fit()": partial(printed, enabled=True, devices=1),
    "fit(), 2 workers": partial(printed, enabled=True, devices=2),
}


def _measure(run: Callable[[Path], list[str]], script: Path) -> tuple[float, float]:
    """Seconds to the first line of the last worker to reach it, and of its import of torch."""
    begin = time.time()
    found = [json.loads(line[line.index("{") :]) for line in run(script) if '{"first"' in line]
    slowest = max(found, key=lambda times: times["first"])
    return slowest["first"] - begin, slowest["imported"] - slowest["first"]


def main() -> list[dict[str, Any]]:
    """Measure and print."""
    measured: dict[str, list[tuple[float, float]]] = {form: [] for form in _FORMS}
    with own_home() as home:
        script = home / "script.py"
        script.write_text(_SCRIPT)
        for _ in range(_ROUNDS):
            for form, run in _FORMS.items():
                measured[form].append(_measure(run, script))
    rows = []
    for form, times in measured.items():
        first, imports = (statistics.median(column) for column in zip(*times, strict=True))
        row = {"form": form, "first_line_seconds": round(first, 3)}
        rows.append(row | {"import_torch_seconds": round(imports, 3)})
        print(f"{form:<20} first line {first:.3f} s, import torch {imports:.3f} s", flush=True)
    return rows
