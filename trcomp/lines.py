"""The line pump: bytes of several processes become whole, prefixed lines of one stream.

    worker's pipe --read--> LinePump --frames--> Console --one write per batch--> stdout
                               \\--bytes as they came--> the worker's own log file

Bytes are never decoded. A frame ends with \\n, \\r\\n or \\r (a progress bar's update) and carries
the prefix; text that is no whole frame yet waits for its end, or for the end of the stream.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
from collections.abc import Callable
from typing import BinaryIO

from trcomp import reserve

_FRAME = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r)")
_READ_BYTES = 65536
_LONGEST_BYTES = 1 << 20
"""A line longer than this is passed on in parts, so that a stream without line ends is bounded."""
_TAIL_BYTES = 32 << 10
_FULL = b"[trcomp] The disk is full: lines are lost from here on, until there is room again.\n"


def rank_prefix(rank: int) -> bytes:
    """What stands before every line of a rank."""
    return f"[rank {rank}] ".encode()


class Console:
    """The stream in which the lines of several pumps meet; a line is never torn by another's.

    Where a source left its line unfinished (a progress bar, a last line without its end) and
    another one writes, the unfinished line is ended first.

    Args:
        fd: File descriptor to write to; once it is broken, output is dropped and nothing raised. A
            file on a disk that is full says so in its last line.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._unfinished: object | None = None
        self._mid_line = False
        self._is_full = False

    def write(self, source: object, prefix: bytes, text: bytes) -> None:
        """Write the frames of a text, each after the prefix."""
        if not text:
            return
        with self._lock:
            ours = self._unfinished is source
            end = b"" if ours or self._unfinished is None else b"\n"
            framed = _prefixed(prefix, text, continues=ours and self._mid_line)
            self._unfinished = None if text.endswith(b"\n") else source
            self._mid_line = not text.endswith((b"\n", b"\r"))
            self._write_all(end + framed)

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
            self._is_full = False
        except OSError as error:
            if error.errno in reserve.FULL:
                self._note_full(len(data) - len(view))
                self._is_full = True

    def _note_full(self, num_written: int) -> None:
        """The last write came only so far: no part of it stays, and the first time it is said."""
        self._unfinished, self._mid_line = None, False
        with contextlib.suppress(OSError):
            if stat.S_ISREG(os.fstat(self._fd).st_mode):
                os.ftruncate(self._fd, os.lseek(self._fd, -num_written, os.SEEK_CUR))
                if not self._is_full:
                    _end_with(self._fd, _FULL)


class LinePump:
    """Cuts one source's bytes into frames for the console.

    Args:
        console: Where the frames go.
        prefix: Stands before every frame.
        raw: Gets every byte as it came.
    """

    def __init__(self, console: Console, prefix: bytes = b"", raw: BinaryIO | None = None) -> None:
        self._console = console
        self._prefix = prefix
        self._raw = raw
        self._pending = bytearray()
        self._tail = bytearray()

    @property
    def tail(self) -> bytes:
        """The last bytes of the source, at most 32 KiB."""
        return bytes(self._tail)

    def feed(self, data: bytes) -> None:
        """Take bytes in; whole frames go out."""
        self._keep(data)
        self._tail += data
        del self._tail[:-_TAIL_BYTES]
        self._pending += data
        cut = _last_frame_end(self._pending)
        if cut == 0 and len(self._pending) > _LONGEST_BYTES:
            cut = len(self._pending)
        self._console.write(self, self._prefix, bytes(self._pending[:cut]))
        del self._pending[:cut]

    def close(self) -> None:
        """Pass on what has no line end, and close the log file."""
        self._console.write(self, self._prefix, bytes(self._pending))
        self._pending.clear()
        self._close()

    def _close(self) -> None:
        if self._raw is not None:
            with contextlib.suppress(OSError):
                self._raw.close()
            self._raw = None

    def _keep(self, data: bytes) -> None:
        if self._raw is None:
            return
        try:
            self._raw.write(data)
            self._raw.flush()
        except OSError as error:
            # A full disk must not block the worker: its lines still reach the console.
            lost = (
                f"[trcomp] {self._raw.name} cannot be written: {error}. Its lines are here alone.\n"
            )
            self._console.write(self._raw, b"", lost.encode())
            self._close()


def _end_with(fd: int, line: bytes) -> None:
    """End a file that cannot grow with a line; it takes the room of the last that are there."""
    with open(f"/proc/self/fd/{fd}", "rb") as written:
        size = written.seek(0, os.SEEK_END)
        start = written.seek(max(size - _TAIL_BYTES, 0))
        tail = written.read()
    place = start + tail.rfind(b"\n", 0, max(len(tail) - len(line), 0)) + 1
    os.ftruncate(fd, place)
    os.lseek(fd, place, os.SEEK_SET)
    os.write(fd, line)


def start_pump(
    fd: int, pump: LinePump, on_end: Callable[[], object] | None = None
) -> threading.Thread:
    """Pump a file descriptor to its end in a thread of its own; the descriptor is then closed.

    Args:
        fd: The reading end of a pipe that some process writes to.
        pump: Takes the bytes, and is closed at the end.
        on_end: Called after that, in the thread.
    """

    def run() -> None:
        try:
            while data := os.read(fd, _READ_BYTES):
                pump.feed(data)
        finally:
            os.close(fd)
            pump.close()
            if on_end is not None:
                on_end()

    thread = threading.Thread(target=run, name="trcomp-lines", daemon=True)
    thread.start()
    return thread


def _prefixed(prefix: bytes, text: bytes, *, continues: bool) -> bytes:
    if not prefix:
        return text
    end = _last_frame_end(text, final=True)
    frames = _FRAME.findall(text[:end])
    if text[end:]:
        frames.append(text[end:])
    framed = b"".join(prefix + frame for frame in frames)
    return framed[len(prefix) :] if continues else framed


def _last_frame_end(text: bytes | bytearray, *, final: bool = False) -> int:
    """Where the last whole frame ends. Unless final, a \\r at the very end may be half a \\r\\n."""
    end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
    if final or end != len(text) or not text.endswith(b"\r"):
        return end
    return max(text.rfind(b"\n", 0, end - 1), text.rfind(b"\r", 0, end - 1)) + 1
