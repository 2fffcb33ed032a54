"""A container's lines, out of the engine's frames into the log file of a host.

    engine --frames--> LineCutter --whole lines--> SavedLines --at their place--> logs/HOST.log

An engine cuts what a container prints anywhere, and gives all of it from the beginning whenever it
is asked. So the file is a function of that stream: who reads it again, after a broken connection or
in place of a process that was killed, writes the same bytes to the same places.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_LONGEST_BYTES = 1 << 20
"""A line longer than this is passed on in parts, so that a stream without line ends is bounded."""
_HEADER_BYTES = 8


class LineCutter:
    """Cuts what several streams print into whole lines, in the order in which they end."""

    def __init__(self) -> None:
        self._pending: dict[int, bytearray] = {}

    def feed(self, stream: int, data: bytes) -> bytes:
        """Take bytes of a stream in; gives its lines that are whole now."""
        pending = self._pending.setdefault(stream, bytearray())
        pending += data
        cut = pending.rfind(b"\n") + 1
        while len(pending) - cut > _LONGEST_BYTES:
            cut += _LONGEST_BYTES
        lines = bytes(pending[:cut])
        del pending[:cut]
        return lines

    def rest(self) -> bytes:
        """What the streams left without a line end, each on a line of its own."""
        return b"\n".join(bytes(self._pending[stream]) for stream in sorted(self._pending)).strip(
            b"\n"
        )


class SavedLines:
    """The log file of a host, written from its beginning; what is there already stays."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._there = os.fstat(self._descriptor).st_size
        self._position = 0

    def write(self, data: bytes) -> None:
        """The next bytes of the file."""
        end = self._position + len(data)
        if end > self._there:
            view, position = memoryview(data), self._position
            while view:
                written = os.pwrite(self._descriptor, view, position)
                view, position = view[written:], position + written
        self._position = end

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def save_lines(container: Any, path: Path, *, follow: bool = False) -> None:
    """Save all that a container printed into a host's log file.

    Args:
        container: The container.
        path: The file.
        follow: Go on as long as the engine does; a line without its end then waits for it.

    Raises:
        OSError: The connection broke, or the file cannot be written.
    """
    import requests
    from urllib3.exceptions import HTTPError

    cutter, saved = LineCutter(), SavedLines(path)
    try:
        for stream, data in _frames(container, follow):
            saved.write(cutter.feed(stream, data))
        if not follow:
            saved.write(cutter.rest())
    except (requests.exceptions.RequestException, HTTPError) as error:
        raise OSError(f"the engine broke off: {error}") from error
    finally:
        saved.close()


def _frames(container: Any, follow: bool) -> Iterator[tuple[int, bytes]]:
    """What the engine gives, each piece with its stream; the SDK's own generator drops that."""
    api = container.client.api
    url = f"{api.base_url}/v{api.api_version}/containers/{container.id}/logs"
    wanted = {"stdout": 1, "stderr": 1, "follow": int(follow)}
    with api.get(url, params=wanted, stream=True, timeout=None) as response:
        response.raise_for_status()
        while len(header := _read(response.raw, _HEADER_BYTES)) == _HEADER_BYTES:
            yield header[0], _read(response.raw, int.from_bytes(header[4:]))


def _read(raw: Any, size: int) -> bytes:
    """That many bytes, fewer only at the end."""
    data = bytearray()
    while len(data) < size and (chunk := raw.read(size - len(data))):
        data += chunk
    return bytes(data)
