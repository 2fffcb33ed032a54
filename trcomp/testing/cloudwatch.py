"""What a job's hosts print, carried to CloudWatch Logs while they print it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path
from typing import Any, Self

from trcomp.backends.aws import client
from trcomp.backends.local_plan import HostPlan
from trcomp.backends.sagemaker_logs import GROUP

_BATCH = 1000


_number = count()


@dataclass
class LogBehaviour:
    """How lines come to CloudWatch, for tests of what reads them."""

    streams_per_host: int = 1
    """A host that starts again has one more; its lines go to one after the other."""
    delay_seconds: float = 0.0
    """How long a line is on its way."""


class Uploader:
    """The logs of one job's hosts; a host has a stream from its first line on."""

    def __init__(
        self, name: str, logs: Path, hosts: Sequence[HostPlan], behaviour: LogBehaviour
    ) -> None:
        self._name = name
        self._files = {host.name: logs / f"{host.name}.log" for host in hosts}
        self._offsets = dict.fromkeys(self._files, 0)
        self._streams: dict[str, cycle[str]] = {}
        self._behaviour = behaviour
        self._clock = 0

    def __enter__(self) -> Self:
        from botocore.exceptions import ClientError

        logs = client("logs")
        try:
            logs.create_log_group(logGroupName=GROUP)
        except ClientError as error:
            if error.response["Error"]["Code"] != "ResourceAlreadyExistsException":
                raise
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def carry(self, final: bool = False) -> None:
        """Send the whole lines that are new.

        Args:
            final: The hosts have ended: a last line without its end is a line.
        """
        time.sleep(self._behaviour.delay_seconds)
        for host, path in self._files.items():
            try:
                with path.open("rb") as stream:
                    stream.seek(self._offsets[host])
                    data = stream.read()
            except FileNotFoundError:
                continue
            if not final:
                data = data[: data.rfind(b"\n") + 1]
            if data:
                self._send(host, data.decode(errors="replace").removesuffix("\n").split("\n"))
                self._offsets[host] += len(data)

    def _send(self, host: str, lines: list[str]) -> None:
        logs: Any = client("logs")
        now = int(time.time() * 1000)
        if host not in self._streams:
            self._streams[host] = cycle(self._new_streams(host, now // 1000))
        # CloudWatch takes no empty line.
        events = [{"timestamp": self._time(now), "message": line or " "} for line in lines]
        several = self._behaviour.streams_per_host > 1
        size = 1 if several else _BATCH
        for begin in range(0, len(events), size):
            batch = {"logGroupName": GROUP, "logEvents": events[begin : begin + size]}
            try:
                logs.put_log_events(**batch, logStreamName=next(self._streams[host]))
            except logs.exceptions.ResourceNotFoundException:  # somebody deleted the stream
                self._streams[host] = cycle(self._new_streams(host, now // 1000))
                logs.put_log_events(**batch, logStreamName=next(self._streams[host]))

    def _time(self, now: int) -> int:
        """A later millisecond for each line, so that streams can be put together again."""
        self._clock = max(self._clock + 1, now)
        return self._clock

    def _new_streams(self, host: str, now: int) -> list[str]:
        names = []
        for _ in range(self._behaviour.streams_per_host):
            # Two of one second would be one.
            names.append(f"{self._name}/{host}-{now + next(_number)}")
            client("logs").create_log_stream(logGroupName=GROUP, logStreamName=names[-1])
        return names
