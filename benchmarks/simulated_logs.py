"""Following the log of a job with many hosts in SageMaker: what is asked of CloudWatch, how late.

CloudWatch is a fake in memory, which has a listing of streams, up to date or not, and their lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trcomp.backends import sagemaker_logs
from trcomp.backends.sagemaker import POLL_SECONDS

_LISTED = 50
"""Streams in a page of the listing."""


class _Logs:
    class exceptions:  # noqa: N801
        class ResourceNotFoundException(Exception):
            """There is no such stream."""

    def __init__(self, num_hosts: int) -> None:
        self.calls = 0
        self._lines = {f"job/algo-{n}-17": list[str]() for n in range(1, num_hosts + 1)}
        self._listed = dict.fromkeys(self._lines, 0)

    def print(self, streams: Sequence[str], *, is_listed: bool = True) -> None:
        """Have hosts print a line each."""
        for stream in streams:
            self._lines[stream].append("step 10: loss 0.25")
            self._listed[stream] += is_listed

    def get_paginator(self, operation: str) -> _Logs:
        assert operation == "describe_log_streams"
        return self

    def paginate(self, **given: Any) -> Iterator[dict[str, Any]]:
        names = list(self._lines)
        for begin in range(0, len(names), _LISTED):
            self.calls += 1
            page = names[begin : begin + _LISTED]
            yield {
                "logStreams": [
                    {"logStreamName": name, "lastIngestionTime": self._listed[name]}
                    for name in page
                ]
            }

    def get_log_events(self, **given: Any) -> dict[str, Any]:
        self.calls += 1
        begin = int(given.get("nextToken", 0))
        texts = self._lines[given["logStreamName"]][begin : begin + given["limit"]]
        events = [{"timestamp": 0, "message": text} for text in texts]
        return {"events": events, "nextForwardToken": str(begin + len(texts))}


def calls(num_hosts: int) -> dict[str, Any]:
    """Calls of a look at a job that is quiet, and seconds until lines that were printed have come.

    ``unlisted_seconds`` is for a host that has just been asked, and whose listing lags behind.
    """
    logs = _Logs(num_hosts)
    cursor = sagemaker_logs.read(logs, "job", {}, True, final=True)[1]
    logs.calls = 0
    cursor = sagemaker_logs.read(logs, "job", cursor, True)[1]
    found: dict[str, Any] = {"calls_of_a_look": logs.calls}
    for name, count, is_listed in (
        ("listed", 1, True),
        ("unlisted", 1, False),
        ("all", num_hosts, True),
    ):
        # One that was asked last is asked again last.
        quiet = sagemaker_logs.read(logs, "job", cursor, True)[1]
        logs.print(list(quiet)[-count:], is_listed=is_listed)
        looks, missing, cursor = 0, count, quiet
        while missing:
            lines, cursor = sagemaker_logs.read(logs, "job", cursor, True)
            missing -= len(lines)
            looks += 1
        found[f"{name}_seconds"] = looks * POLL_SECONDS
    return found
