"""What a local job leaves: its archives, the merged report, the cause of a failure."""

from __future__ import annotations

import os
import re
import signal
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trcomp.backends.base import Failure
from trcomp.backends.measurements import host_environment, rank_report
from trcomp.contract import Paths
from trcomp.notable import notable

_WHERE = re.compile(r"(?:rank (\d+) on )?host (\S+), exit code (\d+)")
LAST_LINES = 20
REPORTS = "trcomp"
"""The directory of the workers' reports in output/data, and so in output.tar.gz."""
_REPORT = re.compile(rf"{REPORTS}/(rank|environment)-[^/]+\.json")
LARGEST = (
    "world_size",
    "steps",
    "compiles",
    "compiled_models",
    "loads",
    "cache_hits",
    "executions",
    "recorded_nodes",
    "early_syncs",
    "record_seconds",
    "compile_seconds",
    "run_seconds",
    "input_wait_seconds",
    "first_step_seconds",
    "steady_step_seconds",
    "peak_rss_bytes",
)
"""Measurements of which a job's is the largest of its ranks': the slowest sets the pace."""
_MOST_TIMELINES = 128
"""Ranks of which a job's report has the course of things, some 50 kB each."""
# Weights hardly compress: the fastest level costs little size and much less time.
_COMPRESSION = 1


def write_archive(target: Path, directories: Sequence[Path]) -> bool:
    """Pack the contents of several hosts' directories into one archive.

    Where two hosts have a file of the same name the first host's is kept: rank 0 runs there.

    Returns:
        False, and no archive, if the directories hold nothing.
    """
    files: dict[str, Path] = {}
    for directory in directories:
        for path in sorted(directory.rglob("*")):
            files.setdefault(path.relative_to(directory).as_posix(), path)
    if not files:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.part")
    try:
        with tarfile.open(temporary, "w:gz", compresslevel=_COMPRESSION) as archive:
            for name, path in files.items():
                archive.add(path, arcname=name, recursive=False)
        os.replace(temporary, target)
    finally:
        # On a full disk half an archive would keep the job from saying so.
        temporary.unlink(missing_ok=True)
    return True


def merged_report(handle: str, hosts: Iterable[Paths]) -> dict[str, Any]:
    """`report_of` what the workers of these hosts wrote."""
    found = (path for paths in hosts for path in paths.output_data.glob(f"{REPORTS}/*"))
    names = (path for path in found if is_report(f"{REPORTS}/{path.name}"))
    return report_of(handle, (path.read_bytes() for path in names))


def is_report(name: str) -> bool:
    """Whether a file of output/data is a worker's report, or a host's environment."""
    return _REPORT.fullmatch(name) is not None


def report_of(handle: str, texts: Iterable[bytes]) -> dict[str, Any]:
    """The reports of a job's workers, in order of rank, and what they say of the job.

    ``environment`` is what each host worked out for its first worker, with the reasons.

    The slowest rank sets a job's pace, so times and counts are the largest of all ranks; samples
    per second add up. Of a job with many ranks only notable ones keep their timelines.
    """
    ranks, hosts = list[dict[str, Any]](), list[dict[str, Any]]()
    timelines = list[dict[str, Any]]()
    for text in texts:
        if (report := rank_report(text)) is not None:
            ranks.append(report)
            timelines.append(report)
            # Thousands of them are not held in memory all at once.
            if len(timelines) > 2 * _MOST_TIMELINES:
                timelines = _with_timelines(timelines)
        elif (host := host_environment(text)) is not None:
            hosts.append(host)
    if len(ranks) > _MOST_TIMELINES:
        _with_timelines(timelines)
    ranks.sort(key=_number)
    hosts.sort(key=lambda one: one["host"])
    return {"job": handle, "totals": _totals(ranks), "ranks": ranks, "environment": hosts}


def _number(report: dict[str, Any]) -> int:
    number: int = report["rank"]
    return number


def _with_timelines(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The notable ones of some reports; the others lose their timelines."""
    reports = sorted(reports, key=_number)
    kept = notable(
        reports, lambda one: one.get("steps", 0), lambda one: one.get("steady_step_seconds")
    )
    numbers = {_number(report) for report in kept}
    for report in reports:
        if report["rank"] not in numbers:
            report["timeline"] = None
    return kept


def failure_of(paths: Paths, logs: Path, host: str, returncode: int) -> Failure:
    """Why a host failed, from what its entrypoint wrote and logged.

    Args:
        paths: The host's /opt/ml tree.
        logs: The job's log directory.
        host: The host's name.
        returncode: How its entrypoint ended, negative for a signal.
    """
    exit_code = 128 - returncode if returncode < 0 else returncode
    try:
        text = paths.failure.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        text = ""
    found = failure_from(text, exit_code, host)
    log = logs / f"{host}.log"
    if found.rank is not None:
        log = logs / host / f"rank-{found.rank}.log"
    return found.model_copy(update={"last_lines": last_lines(log)})


def failure_from(text: str, exit_code: int, host: str | None) -> Failure:
    """Why a job failed, from its failure file, or what there is of it.

    Args:
        text: The file's text, empty if there is none.
        exit_code: Of the entrypoint, where the text does not say whose it was.
        host: Whose file it is, if that is known.
    """
    head, _, rest = text.partition("\n")
    where, _, after = rest.partition("\n")
    match = _WHERE.fullmatch(where)
    return Failure(
        message=head or f"The entrypoint of {host or 'a host'} {_ending(exit_code)}.",
        exit_code=int(match[3]) if match else exit_code,
        host=match[2] if match else host,
        rank=int(match[1]) if match and match[1] else None,
        traceback=(after if match else rest).strip("\n"),
    )


def _ending(exit_code: int) -> str:
    number = exit_code - 128
    if number in set(signal.Signals):
        return f"was killed by {signal.Signals(number).name}"
    return f"ended with exit code {exit_code}"


def last_lines(log: Path) -> tuple[str, ...]:
    """The last lines of a log, oldest first."""
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - 64 * 1024))
            text = stream.read().decode(errors="replace")
    except FileNotFoundError:
        return ()
    return tuple(text.splitlines()[-LAST_LINES:])


def _totals(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    totals: dict[str, Any] = {"num_ranks": len(ranks)}
    for name in LARGEST:
        values = [rank[name] for rank in ranks if rank.get(name) is not None]
        if values:
            totals[name] = max(values)
    rates = [rank["samples_per_second"] for rank in ranks if rank.get("samples_per_second")]
    if rates:
        totals["samples_per_second"] = sum(rates)
    varying = next((rank["varying"] for rank in ranks if rank.get("varying")), None)
    if varying:
        totals["varying"] = varying
    fallbacks: dict[str, int] = {}
    for rank in ranks:
        for op, count in (rank.get("fallbacks") or {}).items():
            fallbacks[op] = fallbacks.get(op, 0) + count
    return totals | {"fallbacks": fallbacks}
