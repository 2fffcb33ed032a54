"""The page of a job: one HTML file that needs nothing else, from its record, report and lines."""

from __future__ import annotations

import itertools
import re
from bisect import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

from trcomp import advice, charts
from trcomp.images import prices
from trcomp.line_metrics import JobMetrics
from trcomp.notable import WORDS, notable

if TYPE_CHECKING:
    from trcomp.backends.base import JobRecord

_CODE = re.compile(r"^.*/ml/code/")
"""What stands before the user's files in a job's container."""
_MOST_POINTS = 600
_MOST_STRETCHES = 120
"""For which a rate is drawn."""
_MOST_ROWS = 256
"""Of a table with a row for each rank."""
_MOST_HOSTS = 16
"""Whose environments are told: hosts hardly differ."""
_SHORT = 20
"""Letters of a cell that stay on one line."""


def page(record: JobRecord, report: Mapping[str, Any], lines: Iterable[str]) -> str:
    """A job as HTML.

    Args:
        record: Its record.
        report: What its workers measured, as `Job.report` gives it.
        lines: What they printed; only its metrics are shown.
    """
    every: Sequence[Mapping[str, Any]] = report.get("ranks", [])
    ranks = _notable(every, record)
    listed = every if len(every) <= _MOST_ROWS else ranks
    sections = [
        _head(record),
        _tiles(record, report.get("totals", {})),
        _failure(record),
        _left_out(every, ranks),
        _section("Step time", _step_times(ranks)),
        _throughput(every),
        _section("Where the time goes", _shares(ranks)),
        _section("What would help most", _advice(report)),
        *_metrics(record, lines),
        _section("Memory", _memory(ranks)),
        _section("Executables", _executables(ranks)),
        _section("Values read within steps", _reads(ranks)),
        _section("Not through XLA", _fallbacks(report.get("totals", {}), ranks)),
        _section("Profile", _profile(record, listed)),
        _section("Workers", _workers(listed)),
        _section("Environment, and why", _environment(report.get("environment", []))),
        _section("States", _states(record)),
    ]
    style = resources.files("trcomp").joinpath("job_page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # An empty icon: a browser would ask for one.
        '<link rel="icon" href="data:,">'
        f"<title>{escape(record.name)}</title>\n<style>\n{style}</style></head>\n"
        f"<body>\n{''.join(sections)}</body></html>\n"
    )


def _head(record: JobRecord) -> str:
    begin, end = record.transitions[0].time, record.transitions[-1].time
    hosts = f"{len(record.hosts)} host{'s' * (len(record.hosts) != 1)} of {record.instance_type}"
    links = (f'<a href="{escape(url)}">{escape(what)}</a>' for what, url in record.links.items())
    return (
        f"<h1>{escape(record.handle)}</h1>\n"
        f'<p><span class="state {record.status}">{record.status}</span> '
        f'<span class="soft">{escape(hosts)}, {begin:%Y-%m-%d %H:%M:%S} UTC, '
        f"{charts.seconds((end - begin).total_seconds())}</span></p>\n"
        f'<p class="soft">{" ".join(links)}</p>\n'
    )


def _tiles(record: JobRecord, totals: Mapping[str, Any]) -> str:
    formats: list[tuple[str, str, Callable[[Any], str]]] = [
        ("workers", "num_ranks", str),
        ("steps", "steps", "{:,}".format),
        ("steady step", "steady_step_seconds", charts.seconds),
        ("first step after", "first_step_seconds", charts.seconds),
        ("samples per second", "samples_per_second", charts.number),
        ("compiles", "compiles", str),
        ("loaded from disk", "loads", str),
        ("input wait", "input_wait_seconds", charts.seconds),
        ("early reads", "early_syncs", str),
        ("peak memory", "peak_rss_bytes", charts.size),
    ]
    rows = [(name, text(totals[key])) for name, key, text in formats if totals.get(key)]
    now = datetime.now(UTC)
    rows += record.details(now)
    if "cost" not in dict(rows):
        rows.append(("cost", record.cost(now) or prices.UNKNOWN))
    tiles = (f"<div><dt>{escape(n)}</dt><dd>{escape(text)}</dd></div>" for n, text in rows)
    return f'<dl class="tiles">{"".join(tiles)}</dl>\n'


def _failure(record: JobRecord) -> str:
    failure = record.failure
    if failure is None:
        return ""
    where = f"rank {failure.rank} on " * (failure.rank is not None)
    where += failure.host or "the job"
    parts = [f'<p class="failed">{escape(failure.message)}</p>']
    parts.append(f'<p class="soft">{escape(where)}, exit code {failure.exit_code}</p>')
    if failure.traceback:
        parts.append(f"<pre>{escape(failure.traceback)}</pre>")
    if failure.last_lines:
        text = escape("\n".join(failure.last_lines))
        parts.append(f"<h2>The last lines of {escape(where)}</h2><pre>{text}</pre>")
    return _section("Why it failed", "".join(parts))


def _notable(ranks: Sequence[Mapping[str, Any]], record: JobRecord) -> Sequence[Mapping[str, Any]]:
    """The ranks that charts show; of a failed job the one that failed is among them."""
    failed = None if record.failure is None else record.failure.rank
    return notable(
        ranks,
        lambda rank: rank.get("steps") or 0,
        lambda rank: rank.get("steady_step_seconds"),
        lambda rank: rank["rank"] == failed,
    )


def _left_out(every: Sequence[object], shown: Sequence[object]) -> str:
    if len(every) == len(shown):
        return ""
    return (
        f'<p class="soft">Of {len(every):,} ranks {len(shown)} are drawn: {WORDS}. '
        "<code>trcomp report --json</code> has all.</p>\n"
    )


def _timeline(rank: Mapping[str, Any], what: str) -> list[Any]:
    return list((rank.get("timeline") or {}).get(what) or [])


def _step_times(ranks: Sequence[Mapping[str, Any]]) -> str:
    series, marks = {}, []
    for rank in ranks:
        steps = _timeline(rank, "steps")
        series[f"rank {rank['rank']}"] = [(step, median) for step, median, _ in steps]
        # A point may stand for several steps, from its own on.
        starts = [step for step, _, _ in steps]
        found = {bisect(starts, event["step"] + 1) for event in _timeline(rank, "compiles")}
        marks += [(steps[i - 1][0], steps[i - 1][2]) for i in sorted(found - {0})]
    return charts.lines(
        series,
        title="Time of each step by rank, with the steps that compiled",
        x_label="step",
        format_y=charts.seconds,
        marks=marks,
        mark_label="compiled",
    )


def _throughput(ranks: Sequence[Mapping[str, Any]]) -> str:
    """What all ranks get done in a second: samples, or steps where samples are not counted."""
    counted = any(rank.get("samples_per_step") for rank in ranks)
    what = "samples" if counted else "steps"
    timed = [rank for rank in ranks if len(_timeline(rank, "made")) > 1]
    # Ranks make a step together: the job's steps are those of one, and ranks of which no course
    # is kept, in a job of many, get as much done as the others do.
    weight = sum(map(_samples, ranks)) / (sum(map(_samples, timed)) or 1.0)
    made = [
        (_timeline(rank, "made"), _samples(rank) * weight if counted else 1 / len(timed))
        for rank in timed
    ]
    drawn = charts.lines(
        {what: _rates(made)},
        title=f"{what.capitalize()} per second of all ranks",
        x_label="seconds",
    )
    return _section(f"Throughput, {what} per second", drawn)


def _samples(rank: Mapping[str, Any]) -> float:
    return rank.get("samples_per_step") or 0.0


def _rates(made: Sequence[tuple[Sequence[Sequence[float]], float]]) -> list[tuple[float, float]]:
    """When ranks got how much done per second, together.

    Args:
        made: Of each rank, its steps by some moments, and how much one of them gets done.
    """
    begin = min((pairs[0][0] for pairs, _ in made), default=0.0)
    end = max((pairs[-1][0] for pairs, _ in made), default=0.0)
    count = min(_MOST_STRETCHES, max((len(pairs) - 1 for pairs, _ in made), default=1))
    width = (end - begin) / count
    if not width > 0:
        return []
    edges = [begin + width * i for i in range(count + 1)]
    done = [sum(_steps_by(edge, pairs) * each for pairs, each in made) for edge in edges]
    changes = [after - before for before, after in itertools.pairwise(done)]
    return [(at + width / 2, change / width) for at, change in zip(edges, changes, strict=False)]


def _steps_by(time: float, made: Sequence[Sequence[float]]) -> float:
    """Steps until a moment, in parts of a step, from those at some moments."""
    after = bisect(made, time, key=lambda pair: pair[0])
    if after == 0 or after == len(made):
        return made[min(after, len(made) - 1)][1]
    (since, before), (until, then) = made[after - 1], made[after]
    return before + (then - before) * (time - since) / (until - since) if until > since else then


def _shares(ranks: Sequence[Mapping[str, Any]]) -> str:
    rows = {f"rank {rank['rank']}": advice.shares_of(rank) for rank in ranks}
    return charts.stacked(rows, title="Seconds of each rank by what they were spent on")


def _advice(report: Mapping[str, Any]) -> str:
    items = (
        f"<li><strong>{escape(one.change)}</strong><br>{escape(one.because)} "
        f"{escape(f'At {one.line}. ' if one.line else '')}"
        f"Saves up to {charts.seconds(one.seconds)}.</li>"
        for one in advice.most_helpful(report)
    )
    text = "".join(items)
    return f"<ol>{text}</ol>" if text else ""


def _metrics(record: JobRecord, lines: Iterable[str]) -> list[str]:
    found = JobMetrics(record.metric_definitions)
    found.read(lines)
    sections = []
    for name, values in found.values.items():
        points = charts.thinned(list(enumerate(values, start=1)), _MOST_POINTS)
        drawn = charts.lines(
            {name: points},
            title=f"{name}, as the job printed it",
            x_label="line that holds it",
            from_zero=False,
        )
        sections.append(_section(name, drawn))
    return sections


def _memory(ranks: Sequence[Mapping[str, Any]]) -> str:
    series = {
        f"rank {rank['rank']}": [(at, size) for at, size in _timeline(rank, "memory")]
        for rank in ranks
    }
    return charts.lines(
        series,
        title="Resident memory of each rank's process",
        x_label="seconds",
        format_y=charts.size,
    )


def _executables(ranks: Sequence[Mapping[str, Any]]) -> str:
    """Those of the first rank: ranks compile the same."""
    rows = []
    for event in _timeline(ranks[0], "compiles") if ranks else []:
        cause = event["reason"] or "a new graph"
        how = "loaded" if event["loaded"] else "compiled"
        rows.append(
            [
                event["step"] + 1,
                how,
                charts.seconds(event["seconds"]),
                f"{event['operations']:,}",
                charts.size(event["bytes"]) if event.get("bytes") else "",
                cause,
                _CODE.sub("", event["line"]),
            ]
        )
    titles = ["step", "", "took", "operations", "memory", "because", "at"]
    return _table(titles, rows, numbers={0, 2, 3, 4}, code={6})


def _fallbacks(totals: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]) -> str:
    rows = _interruptions(ranks, "operator")
    if rows:
        titles = ["operator on the CPU", "times", "cut steps", "took", "at"]
        return _table(titles, rows, numbers={1, 2, 3}, code={0, 4})
    counts: Mapping[str, int] = totals.get("fallbacks") or {}
    rows = [[name, f"{count:,}"] for name, count in sorted(counts.items(), key=lambda i: -i[1])]
    return _table(["operator on the CPU", "times"], rows, numbers={1}, code={0})


def _reads(ranks: Sequence[Mapping[str, Any]]) -> str:
    rows = [row[1:] for row in _interruptions(ranks, "read")]
    titles = ["times", "cut steps", "took", "at"]
    return _table(titles, rows, numbers={0, 1, 2}, code={3})


def _interruptions(ranks: Sequence[Mapping[str, Any]], kind: str) -> list[list[str]]:
    """Name, times, cuts, duration and line of those of a kind in the first rank."""
    found = ranks[0].get("interruptions") or [] if ranks else []
    return [
        [
            one["name"],
            f"{one['count']:,}",
            f"{one['cuts']:,}",
            charts.seconds(one["seconds"]),
            _CODE.sub("", one["line"]),
        ]
        for one in found
        if one["kind"] == kind
    ]


def _profile(record: JobRecord, ranks: Sequence[Mapping[str, Any]]) -> str:
    items = []
    for rank in ranks:
        if found := rank.get("profile"):
            text = escape(f"rank {rank['rank']}, steps {found['steps'][0]} to {found['steps'][1]}")
            uri = record.data_file(str(rank.get("host")), found["file"])
            link = f'<a href="{escape(uri)}">{text}</a>' if uri else text
            items.append(f"<li>{link}: <code>{escape(found['file'])}</code></li>")
    if not items:
        return ""
    return (
        f"<ul>{''.join(items)}</ul><p>Download a file and open it at "
        "<code>https://ui.perfetto.dev</code>, which keeps it on your machine; "
        f"<code>trcomp profile {escape(record.typed)}</code> gives all of them, for XProf too.</p>"
    )


def _workers(ranks: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            rank["rank"],
            rank.get("host", ""),
            rank.get("device") or "",
            f"{rank.get('steps', 0):,}",
            charts.seconds(rank.get("steady_step_seconds") or 0.0),
            charts.size(rank.get("peak_rss_bytes") or 0),
            ", ".join(f"{n} {v}" for n, v in (rank.get("versions") or {}).items()),
        ]
        for rank in ranks
    ]
    titles = ["rank", "host", "device", "steps", "steady step", "peak memory", "versions"]
    return _table(titles, rows, numbers={0, 3, 4, 5})


def _environment(hosts: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for host in hosts[:_MOST_HOSTS]:
        rows = [
            [one["name"], "removed" if one["value"] is None else one["value"], one["reason"]]
            for one in host["variables"]
        ]
        table = _table(["variable", "value", "reason"], rows, code={0, 1})
        who = f"{host['host']}, rank {host['rank']}"
        parts.append(f"<details><summary>{escape(who)}</summary>{table}</details>")
    if more := len(hosts) - len(parts):
        parts.append(
            f"<p>And {more:,} more hosts, which <code>trcomp report --json</code> has.</p>"
        )
    return "".join(parts)


def _states(record: JobRecord) -> str:
    begin = record.transitions[0].time
    rows = [
        [f"{(step.time - begin).total_seconds():.1f} s", str(step.status), step.message]
        for step in record.transitions
    ]
    return _table(["after", "state", ""], rows, numbers={0})


def _table(
    titles: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    numbers: Iterable[int] = (),
    code: Iterable[int] = (),
) -> str:
    if not rows:
        return ""
    kind = {column: ' class="number"' for column in numbers}
    head = "".join(f"<th{kind.get(i, '')}>{escape(t)}</th>" for i, t in enumerate(titles))
    coded = set(code)

    def cell(column: int, value: object) -> str:
        text = escape(str(value))
        inner = f"<code>{text}</code>" if column in coded and text else text
        short = ' class="short"' if len(text) < _SHORT else ""
        return f"<td{kind.get(column, short)}>{inner}</td>"

    body = "".join(
        f"<tr>{''.join(cell(i, value) for i, value in enumerate(row))}</tr>\n" for row in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>\n{body}</table></div>'


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{content}</section>\n" if content else ""
