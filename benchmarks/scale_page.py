"""Writes the page on scale from benchmarks/results: python -m benchmarks.scale_page"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.simulation import RANKS
from benchmarks.training_page import table

RESULTS = Path(__file__).parent / "results" / "simulation.json"
PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
_NOTE = "<!-- Written by benchmarks/scale_page.py from `make bench`; do not edit. -->"
_TEXT = """# Scale

{note}

What grows with a job's hosts, and how far: each host with {ranks} ranks, on one machine. trcomp's
code is the real one throughout; what is simulated is told with each table. ({machine})

## A host's start

From the files of the contract to the workers' arguments and environment, on the last host. It
reads and writes the list of all hosts a fixed number of times. Only rank 0's host looks all names
up and waits for them; the others look for that host alone. `SM_TRAINING_ENV` is the largest
variable, and Linux takes 131,071 bytes of one: a job may have some 2,000 hosts.

{bookkeeping}

## What ranks say to each other

Over the coordinator, JAX's key-value store on rank 0's host; here a store in memory, and each rank
is a thread. *Meeting*: the check that all are of one job, and a rendezvous. *Comparing*: the first
20 collectives, in the first step. *Leaving*: waiting for all at the end. Rank 0 hears all others
and they hear rank 0, so all of it grows with the ranks, not with their square. Bytes are those of
keys and values. Comparing is the most: once, before the first step runs, {burst} MB in all with
what {most} ranks' requests cost beside. Later steps whose graph is known say nothing.

{words}

JAX's real service, with {served} clients through a relay that counts: a rank costs it {at_rest}
bytes a second at rest (heartbeats), so {total} kB a second with {most} ranks; a request costs
{request} bytes beside its own. Progress, watchdogs and lines never leave their host: their files
and pipes cost the coordinator nothing.

## A host dies

The real runner, a sleeping process in place of each host, one of which is killed: seconds until
the others have been told to stop. A worker that dies is noticed by its own supervisor in the same
way, whatever the number of hosts. Between machines SageMaker does so; and a machine that is cut
off or loses power without a word is noticed by the coordinator, after {heartbeat} s without a
heartbeat, which comes every {every} s. A rank that lives but makes no step is the
[watchdog](contract.md#when-a-rank-hangs)'s.

{death}
"""


def page(found: dict[str, Any]) -> str:
    """The page of these results."""
    machine, rows = found["machine"], found["rows"]
    service, jobs = rows["service"], rows["jobs"]
    most = jobs[-1]["hosts"] * RANKS
    versions = ", ".join(f"{name} {machine[name]}" for name in ("python", "torch", "jax"))
    return _TEXT.format(
        note=_NOTE,
        ranks=RANKS,
        machine=f"{machine['date']}, {machine['cpus']} CPU cores, {versions}",
        bookkeeping=_bookkeeping(jobs),
        words=_words(jobs),
        served=service["clients"],
        at_rest=service["bytes_per_second_and_rank"],
        total=round(service["bytes_per_second_and_rank"] * most / 1000),
        most=f"{most:,}",
        request=service["bytes_per_request"],
        burst=round(_with_requests(jobs[-1]["words"]["comparing"], service) / 1e6),
        heartbeat=service["heartbeat_timeout_seconds"],
        every=service["heartbeat_timeout_seconds"] // 2,
        death=_death(jobs),
    )


def _with_requests(said: dict[str, int], service: dict[str, int]) -> int:
    """Bytes through the coordinator, with those that each request costs beside its own."""
    return said["bytes"] + said["requests"] * service["bytes_per_request"]


def _bookkeeping(jobs: list[dict[str, Any]]) -> str:
    rows = [
        (
            f"{job['hosts']:,}",
            f"{job['bookkeeping']['seconds'] * 1000:.0f} ms",
            f"{job['bookkeeping']['names_asked_for_by_all']:,}",
            f"{job['bookkeeping']['largest_variable_bytes']:,} bytes",
            f"{job['bookkeeping']['environment_bytes']:,} bytes",
        )
        for job in jobs
    ]
    titles = ["hosts", "a host's start", "names looked up by all hosts"]
    return table([*titles, "largest variable", "environment of a worker"], rows)


def _words(jobs: list[dict[str, Any]]) -> str:
    def said(job: dict[str, Any], occasion: str) -> str:
        found = job["words"][occasion]
        return f"{found['requests']:,} requests, {found['bytes'] / 1e6:,.2f} MB"

    occasions = ("meeting", "comparing", "leaving")
    rows = [(f"{job['hosts'] * RANKS:,}", *(said(job, each) for each in occasions)) for job in jobs]
    return table(["ranks", *occasions], rows)


def _death(jobs: list[dict[str, Any]]) -> str:
    rows = [
        (
            f"{job['hosts']:,}",
            f"{job['death']['plan_seconds']} s",
            f"{job['death']['start_seconds']} s",
            f"**{job['death']['noticed_seconds']} s**",
        )
        for job in jobs
    ]
    return table(["hosts", "planning the job", "starting them", "all others told"], rows)


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
