"""What the hosts of a job in SageMaker printed, from CloudWatch: each line once, however late."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from trcomp.backends.base import Cursor, with_host

GROUP = "/aws/sagemaker/TrainingJobs"
_THREADS = 8
_MOST_EVENTS = 10_000
"""What CloudWatch gives in one answer."""
_FEWEST_EVENTS = 100
_EVENTS_AT_ONCE = 200_000
"""Of all streams together: about 60 MB."""
_ASKED_AT_ONCE = 100
"""Streams that one look asks: CloudWatch allows an account 10 to 25 GetLogEvents a second, by
Region, and a look comes every five seconds."""
_IN_TURN = 50
"""Of them those whose turn it is, whatever their listing says."""
_Event = tuple[int, str, str]
"""When a line was printed, in milliseconds, by which host, and the line."""


@dataclass(frozen=True)
class _Place:
    """How far a stream has been read."""

    token: str | None
    """CloudWatch's own: what comes after it has not been read."""
    listed: object
    """The stream's times in the listing before it was asked."""
    gave_lines: bool


def read(
    client: Any, name: str, cursor: Cursor, several_hosts: bool, *, final: bool = False
) -> tuple[list[str], Cursor]:
    """The next lines after a cursor in order of their times, and the cursor after them.

    Of many streams a look asks some, so a line may wait for its stream's turn. None is lost: only
    a stream's own token says how far it has been read, and every stream has its turn, the one that
    was asked longest ago first. That its listing has changed since only lets a stream go before
    its turn, as the listing may be an hour behind its lines.

    Args:
        client: boto3's, of CloudWatch Logs.
        name: The job.
        cursor: How far each stream has been read, in the order in which they were asked.
        several_hosts: Whether each line is to name its host.
        final: All streams are asked: if none has lines there are none.
    """
    listed = dict(_streams(client, name))
    waiting = [stream for stream in listed if stream not in cursor]
    waiting += [stream for stream in cursor if stream in listed]
    asked = waiting if final else _next(waiting, cursor, listed)
    tokens = [place.token if (place := cursor.get(stream)) else None for stream in asked]
    # A job that has long run when it is first looked at is not read into memory all at once.
    limit = max(_FEWEST_EVENTS, min(_MOST_EVENTS, _EVENTS_AT_ONCE // max(1, len(asked))))
    with ThreadPoolExecutor(_THREADS) as threads:
        pages = threads.map(lambda s, token: _page(client, s, token, limit), asked, tokens)
        events: list[_Event] = []
        following = dict(cursor)
        for stream, (found, token) in zip(asked, pages, strict=True):
            events += found
            following.pop(stream, None)
            following[stream] = _Place(token, listed[stream], bool(found))
    # Sorting keeps lines of the same millisecond as they are: one host's stay in their order.
    events.sort(key=lambda event: event[0])
    lines = [text.rstrip("\r\n") for _, _, text in events]
    if several_hosts:
        hosts = (host for _, host, _ in events)
        lines = [with_host(host, line) for host, line in zip(hosts, lines, strict=True)]
    return lines, following


def _next(
    waiting: Sequence[str], cursor: Mapping[str, _Place], listed: Mapping[str, object]
) -> list[str]:
    """Whom to ask: whose turn it is, then those that seem to have lines, then further turns."""

    def seems_quiet(stream: str) -> bool:
        place = cursor.get(stream)
        return place is not None and not place.gave_lines and place.listed == listed[stream]

    others = sorted(waiting[_IN_TURN:], key=seems_quiet)
    return [*waiting[:_IN_TURN], *others][:_ASKED_AT_ONCE]


def last_lines(client: Any, name: str, host: str, count: int) -> tuple[str, ...]:
    """The last lines that a host printed, oldest first."""
    for stream, _ in reversed(list(_streams(client, name))):
        if host_of(stream) == host:
            answer = client.get_log_events(
                logGroupName=GROUP, logStreamName=stream, startFromHead=False, limit=count
            )
            return tuple(event["message"] for event in answer["events"])
    return ()


def host_of(stream: str) -> str:
    """The host of a stream ``job/algo-1-1700000000``, or of one without the time at its end."""
    host = stream.rpartition("/")[2]
    start, _, end = host.rpartition("-")
    return start if end.isdigit() and "-" in start else host


def _streams(client: Any, name: str) -> Iterator[tuple[str, object]]:
    """A job's streams, each with its times; a host that starts late, or again, has one later."""
    try:
        for page in client.get_paginator("describe_log_streams").paginate(
            logGroupName=GROUP, logStreamNamePrefix=f"{name}/"
        ):
            for stream in page["logStreams"]:
                times = stream.get("lastEventTimestamp"), stream.get("lastIngestionTime")
                yield stream["logStreamName"], times
    except client.exceptions.ResourceNotFoundException:
        return


def _page(
    client: Any, stream: str, token: str | None, limit: int
) -> tuple[list[_Event], str | None]:
    """The next events of a stream that has any, and the token after them."""
    host = host_of(stream)
    place = {"logGroupName": GROUP, "logStreamName": stream, "startFromHead": True, "limit": limit}
    while True:
        try:
            answer = client.get_log_events(**place, **({"nextToken": token} if token else {}))
        except client.exceptions.ResourceNotFoundException:  # deleted since it was listed
            return [], token
        before, token = token, answer["nextForwardToken"]
        # CloudWatch gives empty pages before the end; only a token that stays is the end.
        if answer["events"] or token == before:
            return [(one["timestamp"], host, one["message"]) for one in answer["events"]], token
