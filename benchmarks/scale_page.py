"""Writes the page on scale from benchmarks/results: python -m benchmarks.scale_page"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.simulation import RANKS
from benchmarks.training_page import table
from trcomp import charts
from trcomp.notable import COUNT, WORDS

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
way, whatever the number of hosts. Between machines the hosts [watch each other][lost], each over
one connection to the first, and here all of these are real, in one process: from the failure of one
host until the last of the others knows of it. Ranks that have not ended by themselves are told to
stop six seconds later. A machine that is cut off or loses power without a word is noticed by JAX's
coordinator, after {heartbeat} s without a heartbeat, which comes every {every} s, and without XLA
by the first host, after 11 s. A rank that lives but makes no step is the
[watchdog](contract.md#when-a-rank-hangs)'s.

[lost]: contract.md#when-a-host-is-lost

{death}

A job's record then has {record} bytes. On one machine its plan, in which each host's contract names
all hosts, is the one thing that grows with their square: {plan} MB.

## A rank dies

The real runner, and on each host the real entrypoint from the start of its workers on: a thread
for each host, and in place of each worker a number and the end of its pipe, which the host's real
pump reads. One rank fails. Its supervisor tells the others of its host and ends, the runner tells
the other hosts, and their supervisors tell their ranks: seconds until the last of each is told.
What a host does depends on its own ranks alone, and none of it goes through the coordinator; here
all hosts do it at once, in one process on {cpus} cores, which is most of the time.

{rank_death}

## A rank hangs

The same job, in which one rank stops and all others 10 to 500 ms later, in a collective with it.
A rank is taken to hang after {silent} s here; a host looks every five seconds, as with the default
of 600. Seconds beyond that until the first and the last rank is told to stop; of many hosts, which
collect the stacks of all ranks in this one process, that is again most of the time. Other hosts may
look earlier than the one whose rank stopped first. It is named nevertheless: what counts is when a
rank stopped, and a host that is told to stop looks once more before it does.

{silence}

## One host

All of it real, with {ranks} processes in place of the ranks. While they train and print nothing the
supervisor takes **{rest} CPU seconds a minute**. When all print as fast as they can it
carries **{lines_per_second} lines a second**, {mb_per_second} MB, for {cpu_lines} CPU seconds a
million lines: each goes into its rank's log, and with its prefix into the host's.

## Who looks at such a job

A directory as a job of so many hosts leaves it after some minutes on one machine: {lines} lines of
each host, what each rank measured, their reports. CPU seconds for a look at the log when there is
nothing new, for `trcomp list`, for each refresh of `trcomp top`, for the report and for the page.
A log is read at {read_rate} lines a second, in parts that take {read_memory} MB. Of many
ranks `trcomp top` and the page show {shown}: {words_shown}.

{look}

In SageMaker CloudWatch allows an account some 10 to 25 calls of a kind a second, by region. A look
every five seconds lists the streams, fifty a call, and asks at most a hundred of them. Seconds
until a line has come: of one host that prints while the others do not, and whose line the listing
shows; of one whose listing lags behind, up to an hour or more, and which is heard when its turn
comes; of all hosts, if all print.

{calls}
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
        bookkeeping=_by_hosts(
            jobs,
            [
                "a host's start",
                "names looked up by all hosts",
                "largest variable",
                "environment of a worker",
            ],
            _bookkeeping,
        ),
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
        death=_by_hosts(
            jobs,
            ["planning the job", "starting them", "all others told", "between machines"],
            _death,
        ),
        record=f"{jobs[-1]['death']['job_bytes']:,}",
        plan=round(jobs[-1]["death"]["plan_bytes"] / 1e6),
        cpus=machine["cpus"],
        rank_death=_by_hosts(
            jobs,
            ["its host's ranks", "the hosts", "all ranks", "ranks told", "it is named"],
            _rank_death,
        ),
        silent=jobs[-1]["silence"]["configured_seconds"],
        silence=_by_hosts(
            jobs, ["first rank told", "all ranks told", "the first is named"], _silence
        ),
        rest=rows["one_host"]["cpu_seconds_per_minute"],
        lines_per_second=f"{rows['one_host']['lines_per_second']:,}",
        mb_per_second=round(rows["one_host"]["mb_per_second"]),
        cpu_lines=rows["one_host"]["cpu_seconds_per_million_lines"],
        lines=f"{jobs[-1]['look']['lines'] // jobs[-1]['hosts']:,}",
        read_rate=f"{jobs[-1]['look']['lines_per_second']:,}",
        read_memory=jobs[-1]["look"]["lines_memory_mb"],
        shown=COUNT,
        words_shown=WORDS,
        look=_by_hosts(jobs, ["log, idle", "list", "top", "report", "page", "the page is"], _look),
        calls=_by_hosts(
            jobs, ["calls of a look", "one host", "one not listed", "all hosts"], _calls
        ),
    )


def _with_requests(said: dict[str, int], service: dict[str, int]) -> int:
    """Bytes through the coordinator, with those that each request costs beside its own."""
    return said["bytes"] + said["requests"] * service["bytes_per_request"]


def _by_hosts(
    jobs: list[dict[str, Any]], titles: Sequence[str], cells: Callable[[dict[str, Any]], list[str]]
) -> str:
    """A table with a row for each job."""
    return table(["hosts", *titles], [(f"{job['hosts']:,}", *cells(job)) for job in jobs])


def _bookkeeping(job: dict[str, Any]) -> list[str]:
    found = job["bookkeeping"]
    return [
        f"{found['seconds'] * 1000:.0f} ms",
        f"{found['names_asked_for_by_all']:,}",
        f"{found['largest_variable_bytes']:,} bytes",
        f"{found['environment_bytes']:,} bytes",
    ]


def _words(jobs: list[dict[str, Any]], service: dict[str, int]) -> str:
    def said(found: dict[str, int]) -> str:
        num_bytes = _with_requests(found, service) / 1e6
        return f"{num_bytes:,.2f} MB in {found['requests']:,} requests"

    occasions = list(jobs[0]["words"])
    rows = [(each, *(said(job["words"][each]) for job in jobs)) for each in occasions]
    return table(["", *(f"{job['hosts'] * RANKS:,} ranks" for job in jobs)], rows)


def _death(job: dict[str, Any]) -> list[str]:
    found = job["death"]
    return [
        f"{found['plan_seconds']} s",
        f"{found['start_seconds']} s",
        f"**{found['noticed_seconds']} s**",
        f"**{job['links']['told_seconds']} s**",
    ]


def _rank_death(job: dict[str, Any]) -> list[str]:
    found = job["rank_death"]
    return [
        f"{found['own_host_seconds']} s",
        f"{found['hosts_seconds']} s",
        f"**{found['ranks_seconds']} s**",
        f"{found['ranks_told']:,}",
        _yes(found["blamed_right"]),
    ]


def _silence(job: dict[str, Any]) -> list[str]:
    found = job["silence"]
    return [
        f"{found['first_beyond_seconds']} s",
        f"**{found['last_beyond_seconds']} s**",
        _yes(found["blamed_right"]),
    ]


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def _look(job: dict[str, Any]) -> list[str]:
    names = ("idle_poll", "list", "top", "report", "page")
    seconds = [charts.seconds(job["look"][f"{name}_seconds"]) for name in names]
    return [*seconds, charts.size(job["look"]["page_bytes"])]


def _calls(job: dict[str, Any]) -> list[str]:
    found = job["calls"]
    seconds = [f"{found[f'{name}_seconds']:.0f} s" for name in ("listed", "unlisted", "all")]
    return [str(found["calls_of_a_look"]), *seconds]


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
