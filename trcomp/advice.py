"""What would make a job quicker: the changes that its report speaks for, and the seconds of each.

What a change saves is an upper bound, since what the host no longer waits for the device may still
need. The numbers are those of the rank that lost most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trcomp import remedies

Rank = Mapping[str, Any]

_WAITING = "waiting for input"
_PLAIN = "steps without XLA"
_SHARES = {
    "compiling": "compile_seconds",
    "script and recording": "record_seconds",
    "starting executables": "sync_seconds",
    "waiting for the device": "run_seconds",
    _WAITING: "input_wait_seconds",
}
"""Where a rank's time went, and the counters that say so."""

_RECORD_SECONDS = 10e-6
"""What recording an operation costs, about."""
_LEAST_SHARE = 0.01
"""Of the time that is accounted for; less is not worth a change."""
_MOST_LINES = 3


@dataclass(frozen=True)
class Advice:
    """One change.

    Attributes:
        change: What to do.
        because: What was measured.
        line: Of the script, `file:line`, most important first; empty if it is about no line.
        seconds: What it saves at most, of a run like this one.
    """

    change: str
    because: str
    line: str
    seconds: float


def shares_of(rank: Rank) -> dict[str, float]:
    """A rank's seconds by what they were spent on."""
    spent = {name: max(float(rank.get(key) or 0), 0.0) for name, key in _SHARES.items()}
    waited = spent[_WAITING]
    if sum(spent.values()) > waited:
        return spent
    # Of torch's own device nothing else is measured but how long a step takes.
    steps = float(rank.get("steps") or 0) * float(rank.get("steady_step_seconds") or 0)
    return {_PLAIN: max(steps - waited, 0.0), _WAITING: waited}


def shares(report: Mapping[str, Any]) -> dict[str, float]:
    """Seconds by what they were spent on, the largest of all ranks each."""
    ranks = [shares_of(rank) for rank in report.get("ranks", [])]
    names = dict.fromkeys(name for rank in ranks for name in rank)
    return {name: max(rank.get(name, 0.0) for rank in ranks) for name in names}


def most_helpful(report: Mapping[str, Any], count: int = 3) -> list[Advice]:
    """The changes that would save most, the best first; none where nothing is to be gained.

    Args:
        report: What a job's workers measured, as `Job.report` gives it.
        count: How many at most.
    """
    spent = shares(report)
    least = _LEAST_SHARE * sum(spent.values())
    best: dict[str, Advice] = {}
    for rank in report.get("ranks", []):
        for advice in _all(rank, str(report.get("job", ""))):
            known = best.get(advice.change)
            if advice.seconds > least and (known is None or advice.seconds > known.seconds):
                best[advice.change] = advice
    return sorted(best.values(), key=lambda advice: -advice.seconds)[:count]


def _all(rank: Rank, handle: str) -> Iterator[Advice]:
    yield from _recompiles(rank)
    yield from _reads(rank)
    yield from _operators(rank)
    yield from _input(rank)
    yield from _recording(rank)
    yield from _first_compiles(rank, handle)


def _recompiles(rank: Rank) -> Iterator[Advice]:
    for cause in rank.get("causes", []):
        if remedies.is_avoidable(cause["kind"]):
            change = remedies.remedy(cause["kind"], cause["example"])
            yield Advice(
                _sentence(change),
                f"{_times(cause['compiles'], 'compile')} for it, such as: {cause['example']}.",
                cause["line"],
                cause["seconds"],
            )


def _reads(rank: Rank) -> Iterator[Advice]:
    found = [one for one in rank.get("interruptions", []) if one["kind"] == "read" and one["cuts"]]
    waited = sum(one["seconds"] for one in found)
    if found:
        # The device computes in any case; what is lost is that the host could go on meanwhile.
        hidden = (rank.get("record_seconds") or 0) + (rank.get("sync_seconds") or 0)
        yield Advice(
            _sentence(remedies.READ_LATER),
            f"{_times(sum(one['cuts'] for one in found), 'step')} cut in two by .item(), print or "
            f"`if tensor`; the host waited {waited:.1f} s in them.",
            _lines(found),
            min(waited, hidden),
        )


def _operators(rank: Rank) -> Iterator[Advice]:
    found = [one for one in rank.get("interruptions", []) if one["kind"] == "operator"]
    if found:
        names = ", ".join(dict.fromkeys(one["name"] for one in found))
        count = sum(one["count"] for one in found)
        yield Advice(
            f"Keep {names} off the step: without a rule for XLA it runs on the CPU",
            f"{_times(count, 'call')}, each with copies to the host and back.",
            _lines(found),
            sum(one["seconds"] for one in found),
        )


def _input(rank: Rank) -> Iterator[Advice]:
    waited = rank.get("input_wait_seconds") or 0.0
    yield Advice(
        "Read input faster: more num_workers, or batches made beforehand",
        f"Steps waited {waited:.1f} s for the loader.",
        "",
        waited,
    )


def _recording(rank: Rank) -> Iterator[Advice]:
    recorded, waited = (float(rank.get(key) or 0) for key in ("record_seconds", "run_seconds"))
    if waited > recorded or rank.get("captures") or rank.get("compiled_models"):
        return  # The device is the slower of the two, or it is done already.
    nodes = rank.get("recorded_nodes") or 0
    yield Advice(
        "Record less: torch.compile(model, backend='trcomp'), or @trcomp.step for whole steps",
        f"{nodes:,} operations were recorded one by one, and the device waited for that.",
        "",
        min(recorded - waited, nodes * _RECORD_SECONDS),
    )


def _first_compiles(rank: Rank, handle: str) -> Iterator[Advice]:
    if rank.get("loads") or not handle.startswith("sagemaker://"):
        return  # On this machine executables are kept by themselves.
    needed = [c for c in rank.get("causes", []) if not remedies.is_avoidable(c["kind"])]
    yield Advice(
        'Keep executables for the next job: TrainingCompilerConfig(cache="s3://bucket/prefix")',
        f"{_times(sum(cause['compiles'] for cause in needed), 'graph')} compiled that any such job "
        "needs.",
        "",
        sum(cause["seconds"] for cause in needed),
    )


def _sentence(remedy: str) -> str:
    return remedy[0].upper() + remedy[1:]


def _times(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _lines(found: Sequence[Mapping[str, Any]]) -> str:
    """The lines that cost most."""
    lines = list(dict.fromkeys(one["line"] for one in found if one["line"]))
    more = f" and {len(lines) - _MOST_LINES} more" if len(lines) > _MOST_LINES else ""
    return ", ".join(lines[:_MOST_LINES]) + more
