"""The directory of a job with many hosts as it stands after some minutes, and what looks at it.

The files are what a job's ranks would have left; who reads them is the real code.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable
from typing import Any

from trcomp import Job, job_page
from trcomp.backends import directory, process, record, results
from trcomp.backends.base import JobStatus
from trcomp.backends.record import LocalRecord
from trcomp.contract import Paths
from trcomp.top_command import View

NAME = "simulated"
_LINES = 100
"""That each rank has printed."""
_STRETCHES = 90
"""That each rank has measured, one a second: more than what is read of them."""
_POINTS = 500
"""Of a rank's timeline, at most."""
_VARIABLES = 30


def make(num_hosts: int, ranks_per_host: int) -> LocalRecord:
    """Write the directory of a job that is training, in TRCOMP_HOME; gives its record."""
    place = directory.jobs_directory() / NAME
    hosts = tuple(f"algo-{number}" for number in range(1, num_hosts + 1))
    found = LocalRecord(
        name=NAME,
        backend="process",
        directory=place,
        instance_type="local_process",
        hosts=hosts,
        transitions=(),
    )
    (place / "logs").mkdir(parents=True)
    for index, host in enumerate(hosts):
        ranks = range(index * ranks_per_host, (index + 1) * ranks_per_host)
        _write_host(found, host, ranks, num_hosts * ranks_per_host)
    for state in (JobStatus.PREPARING, JobStatus.STARTING, JobStatus.TRAINING):
        found = found.entered(state)
    # It goes on as long as this process does.
    own = record.start_ticks(pid := os.getpid())
    found = found.model_copy(update={"runner_pid": pid, "runner_start": own})
    record.write(place, found)
    return found


def _write_host(job: LocalRecord, host: str, ranks: range, num_ranks: int) -> None:
    lines = [
        f"[rank {rank}] step {n}: loss {1 / (n + 1):.4f} and what else a script prints\n"
        for n in range(_LINES)
        for rank in ranks
    ]
    (job.directory / "logs" / f"{host}.log").write_text("".join(lines), encoding="utf-8")
    folder = Paths(job.directory / "hosts" / host / "ml").output_data / results.REPORTS
    folder.mkdir(parents=True)
    for rank in ranks:
        name = f"metrics-rank-{rank}.jsonl" if rank else "metrics.jsonl"
        (folder / name).write_text(_stretches(rank), encoding="utf-8")
        text = json.dumps(_report(rank, num_ranks, host), indent=2)
        (folder / f"rank-{rank}.json").write_text(text, encoding="utf-8")
    variables = [
        {"name": f"A_VARIABLE_{n}", "value": f"value {n}", "reason": "What it is good for. " * 3}
        for n in range(_VARIABLES)
    ]
    text = json.dumps({"host": host, "rank": ranks[0], "variables": variables})
    (folder / f"environment-{host}.json").write_text(text, encoding="utf-8")


def _stretches(rank: int) -> str:
    now = time.time()
    return "".join(
        json.dumps(
            {
                "time": now - _STRETCHES + n,
                "rank": rank,
                "step": 10 * (n + 1),
                "steps": 10,
                "total_steps": 5000,
                "samples": 320,
                "compiles": 0,
                "loads": 0,
                "executions": 10,
                "early_syncs": 0,
                "record_seconds": 0.01,
                "sync_seconds": 0.01,
                "compile_seconds": 0.0,
                "run_seconds": 0.9,
                "input_wait_seconds": 0.01,
                "memory_bytes": 3_000_000_000 + rank,
                "step_seconds": 0.1 + rank * 1e-7,
                "samples_per_second": 320.0,
            }
        )
        + "\n"
        for n in range(_STRETCHES)
    )


def _report(rank: int, num_ranks: int, host: str) -> dict[str, Any]:
    compiled = {"step": 0, "at_seconds": 9.5, "seconds": 30.5, "operations": 4100, "loaded": False}
    compiled |= {"bytes": 9e9, "kind": "first", "reason": "", "line": "train.py:53"}
    return {
        "rank": rank,
        "world_size": num_ranks,
        "host": host,
        "device": "NVIDIA H200",
        "steps": 10_000,
        "compiles": 1,
        "executions": 10_000,
        "record_seconds": 10.0,
        "run_seconds": 900.0,
        "compile_seconds": 30.5,
        "input_wait_seconds": 1.0,
        "first_step_seconds": 40.0,
        "steady_step_seconds": 0.1 + rank * 1e-7,
        "samples_per_second": 320.0,
        "samples_per_step": 32.0,
        "peak_rss_bytes": 3_000_000_000 + rank,
        "versions": {"python": "3.11.7", "trcomp": "0.1.0", "torch": "2.13.0", "jax": "0.10.2"},
        "timeline": {
            "steps": [[2 + 20 * n, 0.1, 0.11] for n in range(_POINTS)],
            "made": [[40.0 + 2 * n, 2 + 20 * n] for n in range(_POINTS)],
            "compiles": [compiled],
            "memory": [[2.0 * n, 3_000_000_000 + n] for n in range(_POINTS)],
        },
    }


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.process_time()
    found = work()
    return round(time.process_time() - begin, 4), found


def _memory_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _read_all(job: Job) -> tuple[int, dict[str, Any]]:
    cursor: dict[str, Any] = {}
    count = 0
    while True:
        lines, cursor = job.read_logs(cursor)
        if not lines:
            return count, cursor
        count += len(lines)


def look(num_hosts: int, ranks_per_host: int) -> dict[str, Any]:
    """CPU seconds of each who looks at the job, and how much there is then to see."""
    make(num_hosts, ranks_per_host)
    job = Job.attach(NAME)
    before = _memory_mb()
    reading, (count, cursor) = _timed(lambda: _read_all(job))
    most = _memory_mb()
    idle = min(_timed(lambda: job.read_logs(cursor))[0] for _ in range(3))
    listing, _ = _timed(process.records)
    view = View(job)
    first, _ = _timed(view.look)
    again, screen = _timed(view.look)
    reporting, report = _timed(job.report)
    drawing, page = _timed(lambda: job_page.page(job.record(), report, ()))
    return {
        "lines": count,
        "lines_per_second": round(count / max(reading, 1e-3)),
        "lines_memory_mb": most - before,
        "idle_poll_seconds": idle,
        "list_seconds": listing,
        "top_first_seconds": first,
        "top_seconds": again,
        "top_lines": screen.text().count("\n") + 1,
        "report_seconds": reporting,
        "page_seconds": drawing,
        "page_bytes": len(page.encode()),
    }
