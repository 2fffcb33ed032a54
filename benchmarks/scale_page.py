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
is a thread. Rank 0 hears all others and they hear rank 0, so all of it grows with the ranks, not
with their square. *Meeting*: the check that all are of one job, and a rendezvous. *Comparing*: what
a graph does with other ranks, before it first runs, and later at the 4th, 16th, 64th collective and
so on. *Waiting*: a look into a wait that lasts longer than is usual, at most every {pause} s.
*Failing*: all are told of a rank's failure. *Leaving*: waiting for all at the end. Steps of known
graphs say nothing.

{words}

Each with the {request} bytes that a request costs beside its own, as counted on JAX's real service
with {served} clients through a relay. There a rank costs {at_rest} bytes a second at rest, its
heartbeats. So {most} ranks cost the coordinator **{total} MB a second** at rest, and
**{waiting} MB** where every step lasts longer than {pause} s and is looked into. Progress,
watchdogs and lines never leave their host: their files and pipes cost it nothing.

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
    at_rest = service["bytes_per_second_and_rank"] * most
    look, pause = _with_requests(jobs[-1]["words"]["waiting"], service), service["pause_seconds"]
    versions = ", ".join(f"{name} {machine[name]}" for name in ("python", "torch", "jax"))
    return _TEXT.format(
        note=_NOTE,
        ranks=RANKS,
        machine=f"{machine['date']}, {machine['cpus']} CPU cores, {versions}",
        bookkeeping=_bookkeeping(jobs),
        words=_words(jobs, service),
        served=service["clients"],
        at_rest=service["bytes_per_second_and_rank"],
        total=f"{at_rest / 1e6:.2f}",
        pause=round(pause),
        waiting=f"{(at_rest + look / pause) / 1e6:.2f}",
        most=f"{most:,}",
        request=service["bytes_per_request"],
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


def _words(jobs: list[dict[str, Any]], service: dict[str, int]) -> str:
    def said(found: dict[str, int]) -> str:
        num_bytes = _with_requests(found, service) / 1e6
        return f"{num_bytes:,.2f} MB in {found['requests']:,} requests"

    occasions = list(jobs[0]["words"])
    rows = [(each, *(said(job["words"][each]) for job in jobs)) for each in occasions]
    return table(["", *(f"{job['hosts'] * RANKS:,} ranks" for job in jobs)], rows)


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
