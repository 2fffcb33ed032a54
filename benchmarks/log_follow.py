"""Following the log of 100 hosts that print 1,000 lines a second each: how late a line is read.

A process of its own stands for CloudWatch: it has what was printed so far, in pages of 10,000
events or 1 MB, as the service makes them. The follower is trcomp's own, with boto3 over HTTP, and
asks again and again. It measures trcomp alone: an account's own limit of calls may be what binds.
Run: python -m benchmarks log_follow
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.queues import Queue
from typing import Any, ClassVar
from unittest import mock

from trcomp.backends import sagemaker_logs
from trcomp.backends.aws import client

HOSTS = 100
LINES_A_SECOND = 1000
SECONDS = 20.0
_PAGE_EVENTS = 10_000
_PAGE_BYTES = 1 << 20
_STREAMS_A_PAGE = 50


class _CloudWatch(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    begin: ClassVar[float]
    end: ClassVar[float]

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def do_POST(self) -> None:
        """Answer one call."""
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        described = self.headers["X-Amz-Target"].endswith("DescribeLogStreams")
        body = (self._streams(given) if described else self._events(given)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _streams(self, given: dict[str, Any]) -> str:
        begin = int(given.get("nextToken", 0))
        end = min(begin + _STREAMS_A_PAGE, HOSTS)
        names = [{"logStreamName": f"job/algo-{n + 1}-17"} for n in range(begin, end)]
        return json.dumps({"logStreams": names} | ({"nextToken": str(end)} if end < HOSTS else {}))

    def _events(self, given: dict[str, Any]) -> str:
        begin = int(given.get("nextToken", 0))
        since = min(time.time(), self.end) - self.begin
        most = given.get("limit", _PAGE_EVENTS)
        end = min(int(since * LINES_A_SECOND), begin + most)
        texts, size = [], 0
        for number in range(begin, end):
            at = int((self.begin + number / LINES_A_SECOND) * 1000)
            texts.append(
                f'{{"timestamp":{at},"ingestionTime":{at},'
                f'"message":"[rank 0] step {number}: loss 0.25 and what else a script prints"}}'
            )
            size += len(texts[-1])
            if size > _PAGE_BYTES:
                break
        return f'{{"events":[{",".join(texts)}],"nextForwardToken":"{begin + len(texts)}"}}'


def _serve(seconds: float, address: Queue[tuple[int, float]]) -> None:
    _CloudWatch.begin = time.time() + 1.0
    _CloudWatch.end = _CloudWatch.begin + seconds
    server = ThreadingHTTPServer(("127.0.0.1", 0), _CloudWatch)
    address.put((server.server_port, _CloudWatch.end))
    server.serve_forever()


@contextmanager
def _cloudwatch(seconds: float) -> Iterator[float]:
    """Start it; gives when it will have printed its last line."""
    context = multiprocessing.get_context("spawn")
    address: Queue[tuple[int, float]] = context.Queue()
    process = context.Process(target=_serve, args=(seconds, address), daemon=True)
    process.start()
    port, end = address.get()
    environ = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        with mock.patch.dict(os.environ, environ):
            yield end
    finally:
        process.terminate()
        process.join()


def measure(seconds: float = SECONDS) -> dict[str, Any]:
    """How late lines are, in seconds, how many came, and the follower's memory."""
    lags, cursor, count = [], {}, 0
    with _cloudwatch(seconds) as end:
        logs = client("logs")
        while True:
            lines, cursor = sagemaker_logs.read(logs, "job", cursor, several_hosts=True)
            now = time.time()
            if lines:
                # Of the newest line, as its number tells.
                number = max(int(line.split("step ")[1].split(":")[0]) for line in lines[-HOSTS:])
                lags.append(min(now, end) - (end - seconds + number / LINES_A_SECOND))
                count += len(lines)
            elif now > end:
                break
    return {
        "hosts": HOSTS,
        "lines_per_second": HOSTS * LINES_A_SECOND,
        "lines": count,
        "due": int(HOSTS * LINES_A_SECOND * seconds),
        "lag_seconds": round(statistics.median(lags), 2),
        "largest_lag_seconds": round(max(lags), 2),
        "caught_up_seconds": round(now - end, 2),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def main(**limits: Any) -> dict[str, Any]:
    """The figures."""
    return measure()


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
