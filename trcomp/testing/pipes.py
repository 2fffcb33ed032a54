"""Channels in Pipe mode: input/data/CHANNEL_EPOCH, a FIFO, streams the records of one epoch."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from trcomp.contract import Paths
from trcomp.testing import channels, host_files
from trcomp.testing.channels import Share

_TICK_SECONDS = 0.02


@contextmanager
def serving(request: Mapping[str, Any], hosts: Mapping[str, Paths]) -> Iterator[None]:
    """Stream the channels of a job to its hosts, until the block ends."""
    pipes = [
        _Pipe(channel, paths.data(channel["ChannelName"]), share)
        for host, paths in hosts.items()
        for channel, share in host_files.channels_of(request, host)
        if channels.mode(request, channel) == "Pipe"
    ]
    for pipe in pipes:
        pipe.start()
    try:
        yield
    finally:
        for pipe in pipes:
            pipe.ended.set()
        for pipe in pipes:
            pipe.join()


class _Pipe(threading.Thread):
    """One channel of one host: as an epoch's FIFO is opened, the next one is there."""

    def __init__(self, channel: Mapping[str, Any], place: Path, share: Share) -> None:
        super().__init__(name=f"pipe {place}", daemon=True)
        self._channel, self._place, self._share = channel, place, share
        self.ended = threading.Event()
        self._make(0)

    def run(self) -> None:
        """Stream epoch by epoch."""
        for epoch in count():
            stream = self._opened(epoch)
            if stream is None:
                return
            self._make(epoch + 1)
            try:
                # Who stops reading in the middle goes on with the next epoch.
                with suppress(BrokenPipeError):
                    for record in channels.records(self._channel, self._share, epoch):
                        self._write(stream, record)
            finally:
                os.close(stream)

    def _fifo(self, epoch: int) -> Path:
        return self._place.with_name(f"{self._place.name}_{epoch}")

    def _make(self, epoch: int) -> None:
        self._place.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(self._fifo(epoch))

    def _opened(self, epoch: int) -> int | None:
        """The epoch's FIFO as soon as somebody reads it; None if the job ends before."""
        while not self.ended.wait(_TICK_SECONDS):
            # Without a reader it cannot be opened so: ENXIO.
            with suppress(OSError):
                return os.open(self._fifo(epoch), os.O_WRONLY | os.O_NONBLOCK)
        return None

    def _write(self, stream: int, record: bytes) -> None:
        rest = memoryview(record)
        while rest and not self.ended.is_set():
            if select.select([], [stream], [], _TICK_SECONDS)[1]:
                with suppress(BlockingIOError):
                    rest = rest[os.write(stream, rest) :]
