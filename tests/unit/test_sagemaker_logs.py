"""The log of a job in SageMaker: every line once, in whichever stream and however late."""

from __future__ import annotations

from typing import Any

import pytest

from trcomp.backends import sagemaker_logs
from trcomp.backends.sagemaker_logs import GROUP, host_of, last_lines


class Logs:
    """CloudWatch Logs as far as it is asked: pages of streams and of events, some of them empty."""

    class exceptions:  # noqa: N801
        class ResourceNotFoundException(Exception):
            """There is no such group."""

    def __init__(self, page_size: int = 2, empty_pages: int = 1) -> None:
        self.streams: dict[str, list[dict[str, Any]]] = {}
        self.listed: dict[str, int] = {}
        """What the listing says of a stream, where it is not up to date."""
        self.asked: list[str] = []
        self.page_size = page_size
        self.empty_pages = empty_pages

    def put(self, stream: str, *lines: str, time: int = 0) -> None:
        events = [{"timestamp": time + index, "message": line} for index, line in enumerate(lines)]
        self.streams.setdefault(stream, []).extend(events)

    def get_paginator(self, operation: str) -> Logs:
        assert operation == "describe_log_streams"
        return self

    def paginate(self, logGroupName: str, logStreamNamePrefix: str) -> list[dict[str, Any]]:  # noqa: N803
        if not self.streams:
            raise self.exceptions.ResourceNotFoundException
        assert logGroupName == GROUP
        names = [name for name in sorted(self.streams) if name.startswith(logStreamNamePrefix)]
        return [
            {"logStreams": [self._described(name) for name in names[begin : begin + 50]]}
            for begin in range(0, len(names), 50)
        ]

    def _described(self, name: str) -> dict[str, Any]:
        ingested = self.listed.get(name, len(self.streams[name]))
        return {"logStreamName": name, "lastIngestionTime": ingested}

    def get_log_events(self, **given: Any) -> dict[str, Any]:
        self.asked.append(given["logStreamName"])
        events = self.streams[given["logStreamName"]]
        if not given["startFromHead"]:
            return {"events": events[-given["limit"] :]}
        begin, skipped = map(int, given.get("nextToken", "0/0").split("/"))
        if begin < len(events) and skipped < self.empty_pages:
            return {"events": [], "nextForwardToken": f"{begin}/{skipped + 1}"}
        page = events[begin : begin + self.page_size]
        token = f"{begin + len(page)}/0" if page else given.get("nextToken", "0/0")
        return {"events": page, "nextForwardToken": token}


def everything(
    logs: Logs, cursor: dict[str, Any], several: bool = False
) -> tuple[list[str], dict[str, Any]]:
    """What a reader that asks until there is nothing gets."""
    lines: list[str] = []
    while True:
        new, cursor = sagemaker_logs.read(logs, "job", cursor, several, final=True)
        if not new:
            return lines, cursor
        lines += new


def test_before_anything_is_printed_there_is_nothing() -> None:
    assert everything(Logs(), {})[0] == []


@pytest.mark.parametrize("empty_pages", [0, 3])
def test_empty_pages_before_the_end_lose_nothing(empty_pages: int) -> None:
    logs = Logs(empty_pages=empty_pages)
    logs.put("job/algo-1-17", *(str(number) for number in range(7)))
    lines, cursor = everything(logs, {})
    assert lines == [str(number) for number in range(7)]
    logs.put("job/algo-1-17", "7", "8", "9")
    assert everything(logs, cursor)[0] == ["7", "8", "9"]


def test_streams_that_appear_later_are_read_from_their_beginning_and_no_line_comes_twice() -> None:
    logs = Logs()
    logs.put("job/algo-1-17", "a")
    lines, cursor = everything(logs, {}, several=True)
    logs.put("job/algo-2-18", "b")
    logs.put("job/algo-1-19", "restarted")  # a spot instance came back
    logs.put("jobs/algo-1-17", "of another job")
    more, _ = everything(logs, cursor, several=True)
    assert lines == ["[algo-1] a"]
    assert sorted(more) == ["[algo-1] restarted", "[algo-2] b"]


def test_more_than_fifty_streams_in_order_of_time() -> None:
    logs = Logs(page_size=100)
    for host in range(120):
        logs.put(f"job/algo-{host}-17", f"[rank {host}] x", time=1000 - host)
    lines, _ = everything(logs, {}, several=True)
    assert lines == [f"[algo-{host} rank {host}] x" for host in reversed(range(120))]


def a_job_of_hosts(count: int) -> tuple[Logs, dict[str, Any]]:
    """A job whose hosts have printed a line each, all of them read, and where to read on."""
    logs = Logs(empty_pages=0)
    for host in range(count):
        logs.put(f"job/algo-{host}-17", "x")
    lines, cursor = everything(logs, {})
    assert len(lines) == count
    logs.asked.clear()
    return logs, cursor


def test_a_look_at_a_large_job_asks_no_more_than_cloudwatch_allows() -> None:
    logs, cursor = a_job_of_hosts(1000)
    for _ in range(3):
        logs.asked.clear()
        _, cursor = sagemaker_logs.read(logs, "job", cursor, True)
        # A look comes every five seconds, and there may be 25 calls in each of them.
        assert 0 < len(logs.asked) <= 5 * 25
    few, cursor = a_job_of_hosts(80)
    sagemaker_logs.read(few, "job", cursor, True)
    assert len(few.asked) == 80


def test_of_a_large_job_hosts_that_print_are_read_first() -> None:
    logs, cursor = a_job_of_hosts(1000)
    for host in range(930, 970):
        logs.put(f"job/algo-{host}-17", "new")
    lines, cursor = sagemaker_logs.read(logs, "job", cursor, False)
    assert lines == ["new"] * 40


def test_no_line_of_a_large_job_is_lost_where_the_listing_lags_behind() -> None:
    logs, cursor = a_job_of_hosts(1000)
    lines = []
    for look in range(60):
        if look < 20:
            for host in range(1000):
                name = f"job/algo-{host}-17"
                # Half of the listing stands still; the other half, which prints as much, moves.
                logs.listed[name] = look if host % 2 else 1
                logs.put(name, f"{host} {look}")
        new, cursor = sagemaker_logs.read(logs, "job", cursor, False)
        lines += new
    # Each of 60 looks asks 100 of 1,000 hosts, two lines a page.
    assert len({line.split()[0] for line in lines}) == 1000
    lines += everything(logs, cursor)[0]
    assert sorted(lines) == sorted(f"{host} {look}" for host in range(1000) for look in range(20))


def test_the_last_lines_are_those_of_the_hosts_latest_stream() -> None:
    logs = Logs()
    logs.put("job/algo-1-17", "old")
    logs.put("job/algo-1-18", "a", "b", "c")
    logs.put("job/algo-11-18", "other")
    assert last_lines(logs, "job", "algo-1", 2) == ("b", "c")
    assert last_lines(logs, "job", "algo-2", 2) == ()


@pytest.mark.parametrize(
    ("stream", "host"), [("job/algo-1-1700000000", "algo-1"), ("a-b-1/algo-12", "algo-12")]
)
def test_a_stream_names_its_host(stream: str, host: str) -> None:
    assert host_of(stream) == host
