"""What the hosts of a job in SageMaker printed, from CloudWatch: each line once, however late."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trcomp.backends.base import Cursor, with_host

GROUP = "/aws/sagemaker/TrainingJobs"
_THREADS = 8
_MOST_EVENTS = 10_000
"""What CloudWatch gives in one answer."""
_FEWEST_EVENTS = 100
_EVENTS_AT_ONCE = 200_000
"""Of all streams together: about 60 MB."""
_Event = tuple[int, str, str]
"""When a line was printed, in milliseconds, by which host, and the line."""


def read(client: Any, name: str, cursor: Cursor, several_hosts: bool) -> tuple[list[str], Cursor]:
    """The lines after a cursor in order of their times, and the cursor after them.

    Args:
        client: boto3's, of CloudWatch Logs.
        name: The job.
        cursor: How far each stream has been read: CloudWatch's own token by the stream's name.
        several_hosts: Whether each line is to name its host.
    """
    streams = list(_streams(client, name))
    # A job that has long run when it is first looked at is not read into memory all at once.
    limit = max(_FEWEST_EVENTS, min(_MOST_EVENTS, _EVENTS_AT_ONCE // max(1, len(streams))))
    with ThreadPoolExecutor(_THREADS) as threads:
        pages = threads.map(lambda s: _page(client, s, cursor.get(s), limit), streams)
        events: list[_Event] = []
        following = dict(cursor)
        for stream, (found, token) in zip(streams, pages, strict=True):
            events += found
            following[stream] = token
    # Sorting keeps lines of the same millisecond as they are: one host's stay in their order.
    events.sort(key=lambda event: event[0])
    lines = [text.rstrip("\r\n") for _, _, text in events]
    if several_hosts:
        hosts = (host for _, host, _ in events)
        lines = [with_host(host, line) for host, line in zip(hosts, lines, strict=True)]
    return lines, following


def last_lines(client: Any, name: str, host: str, count: int) -> tuple[str, ...]:
    """The last lines that a host printed, oldest first."""
    for stream in reversed(list(_streams(client, name))):
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


def _streams(client: Any, name: str) -> Iterator[str]:
    """The names of a job's streams; a host that starts late, or again, has one later."""
    try:
        for page in client.get_paginator("describe_log_streams").paginate(
            logGroupName=GROUP, logStreamNamePrefix=f"{name}/"
        ):
            yield from (stream["logStreamName"] for stream in page["logStreams"])
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
