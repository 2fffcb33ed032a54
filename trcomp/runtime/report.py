"""What a worker leaves at its end: its counters and step times, as JSON in the report folder."""

from __future__ import annotations

import atexit
import itertools
import json
import multiprocessing
import os
import platform
import resource
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from trcomp import flags, unwritten
from trcomp.env.topology import Topology
from trcomp.runtime import causes, interruptions, own_rank, profile, timeline, varying
from trcomp.runtime.metrics import counters, metrics

_loaded = time.perf_counter()


def install() -> None:
    """Write this rank's report when the process ends, if the job has a report folder."""
    if flags.REPORT_DIR.get():
        atexit.register(write)


def cancel() -> None:
    """Write no report after all: this process starts the ranks and is none itself."""
    atexit.unregister(write)


def write() -> None:
    """Write `rank-<rank>.json` into the report folder."""
    if not counters.steps and multiprocessing.parent_process() is not None:
        return  # A loader's worker, which inherited the rank's environment.
    folder = Path(flags.REPORT_DIR.get())
    summary = summarize()
    path = folder / f"rank-{summary['rank']}.json"
    draft = path.with_suffix(f".{os.getpid()}")
    with unwritten.told(f"The report {path.name}"):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_text(json.dumps(summary, indent=2) + "\n")
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def summarize() -> dict[str, Any]:
    """This rank's counters, step times in seconds, throughput, memory and versions.

    Throughput is this rank's own; a job's is the sum over its ranks.
    """
    own = own_rank.identity()
    marks = counters.step_marks
    steady = steady_step_seconds(marks)
    per_step = counters.samples / counters.steps if counters.steps else 0.0
    return {
        "rank": own.rank,
        "world_size": own.world_size,
        "host": host_name(),
        "device": _device(),
        **metrics(),
        "new_graph_steps": counters.new_graph_steps,
        "varying": varying.summary(),
        "causes": causes.summary(),
        "interruptions": interruptions.summary(),
        "first_step_seconds": marks[0] - _loaded if marks else None,
        "steady_step_seconds": steady,
        "samples_per_step": per_step,
        "samples_per_second": per_step / steady if steady else None,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "versions": _versions(),
        "timeline": timeline.summary(marks),
        "profile": profile.summary(),
    }


def steady_step_seconds(marks: Sequence[float]) -> float | None:
    """Median time between step barriers after the first fifth, which warms up; None if unknown."""
    steps = [after - before for before, after in itertools.pairwise(marks)]
    warm = steps[-(-len(steps) // 5) :] or steps
    return statistics.median(warm) if warm else None


def host_name() -> str:
    """This host's name in the job; outside a job, the machine's."""
    text = flags.TOPOLOGY.get()
    if not text:
        return socket.gethostname()
    return Topology.from_json(text).hosts[flags.HOST_INDEX.get()].name


def _device() -> str | None:
    """What this rank computes on, as its maker calls it; None if it never opened it."""
    if not flags.ENABLED.get():
        import torch

        return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    from trcomp.runtime.device import Process

    if not Process.started:
        return None
    from trcomp.runtime import client

    return str(client.device().device_kind)


def _versions() -> dict[str, str]:
    loaded = [name for name in ("trcomp", "torch", "jax", "jaxlib") if name in sys.modules]
    return {"python": platform.python_version(), **{name: _version(name) for name in loaded}}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return str(getattr(sys.modules[package], "__version__", "unknown"))
