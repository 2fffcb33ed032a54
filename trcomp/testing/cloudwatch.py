"""What a job's hosts print, carried to CloudWatch Logs while they print it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from trcomp.backends.aws import client
from trcomp.backends.local_plan import HostPlan
from trcomp.backends.sagemaker_logs import GROUP

_BATCH = 1000


class Uploader:
    """The logs of one job's hosts; a host has a stream from its first line on."""

    def __init__(self, name: str, logs: Path, hosts: Sequence[HostPlan]) -> None:
        self._name = name
        self._files = {host.name: logs / f"{host.name}.log" for host in hosts}
        self._offsets = dict.fromkeys(self._files, 0)
        self._streams: dict[str, str] = {}

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
            self._streams[host] = f"{self._name}/{host}-{now // 1000}"
            logs.create_log_stream(logGroupName=GROUP, logStreamName=self._streams[host])
        # CloudWatch takes no empty line.
        events = [{"timestamp": now, "message": line or " "} for line in lines]
        for begin in range(0, len(events), _BATCH):
            logs.put_log_events(
                logGroupName=GROUP,
                logStreamName=self._streams[host],
                logEvents=events[begin : begin + _BATCH],
            )
