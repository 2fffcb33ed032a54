"""A data parallel step on 1, 2 and 4 processes, by trcomp and by DistributedDataParallel over gloo.

    python -m benchmarks scaling

The batch of all ranks together stays the same, and the processes share the machine's cores: what
more processes cost on one machine is what dividing the work and averaging gradients costs. The same
script runs in both forms, as jobs that alternate. Ranks beyond the number of cores wait for them.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.jobs import own_home, printed

_MODEL, _BATCH, _STEPS = "vit", 8, 12
_PROCESSES = (1, 2, 4)
_ROUNDS = 2
_FORMS = {"ddp": False, "trcomp": True}


def _seconds(processes: int, enabled: bool) -> list[float]:
    """Step times of one job."""
    here = Path(__file__)
    lines = printed(
        here.with_name("scaling_script.py"),
        enabled=enabled,
        devices=processes,
        root=str(here.parents[1]),
        model=_MODEL,
        batch=_BATCH,
        steps=_STEPS,
    )
    line = next(line for line in lines if '{"seconds"' in line)
    found: list[float] = json.loads(line[line.index("{") :])["seconds"]
    return found


def main() -> list[dict[str, Any]]:
    """Measure and print."""
    times: dict[tuple[int, str], list[float]] = {}
    with own_home():
        for _ in range(_ROUNDS):
            for processes in _PROCESSES:
                for form, enabled in _FORMS.items():
                    found = _seconds(processes, enabled)
                    times.setdefault((processes, form), []).extend(found)
                    median = statistics.median(found) * 1e3
                    print(f"{processes} processes, {form:<8} {median:.1f} ms", flush=True)
    if max(_PROCESSES) > (os.cpu_count() or 1):
        print("some ranks share a core: no more can be gained there", file=sys.stderr)
    return [
        {"model": _MODEL, "batch": _BATCH, "processes": processes}
        | {
            f"{form}_{key}": value
            for form in _FORMS
            for key, value in _figures(times, processes, form).items()
        }
        for processes in _PROCESSES
    ]


def _figures(
    times: dict[tuple[int, str], list[float]], processes: int, form: str
) -> dict[str, float]:
    median = statistics.median(times[processes, form])
    alone = statistics.median(times[1, form])
    return {"ms": round(median * 1e3, 1), "to_one": round(median / alone, 2)}
