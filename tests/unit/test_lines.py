"""The line pump: no byte lost, no line torn, one prefix per line."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trcomp.lines import Console, LinePump, rank_prefix, start_pump

CHUNKS = st.lists(
    st.sampled_from([b"a", b"\n", b"\r", b"\xff\xfe", "ä".encode()[:1], b"word ", b""]), max_size=30
)


def pumped(chunks: list[bytes], prefix: bytes = b"> ") -> bytes:
    reading, writing = os.pipe()
    pump = LinePump(Console(writing), prefix)
    for chunk in chunks:
        pump.feed(chunk)
    pump.close()
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        return stream.read()


def test_lines_get_the_prefix() -> None:
    assert pumped([b"one\ntwo\n"]) == b"> one\n> two\n"


def test_a_line_in_parts_is_one_line() -> None:
    assert pumped([b"loss=", b"0.5", b"\n"]) == b"> loss=0.5\n"


def test_indentation_blanks_and_empty_lines_are_kept() -> None:
    assert pumped([b"  a \n\n\tb\n"]) == b">   a \n> \n> \tb\n"


def test_a_last_line_without_its_end_is_passed_on() -> None:
    assert pumped([b"one\ntwo"]) == b"> one\n> two"


def test_progress_updates_stay_updates() -> None:
    assert pumped([b"10%\r", b"20%\r", b"done\n"]) == b"> 10%\r> 20%\r> done\n"


def test_a_windows_line_end_in_two_parts_is_one_end() -> None:
    assert pumped([b"one\r", b"\ntwo\r\n"]) == b"> one\r\n> two\r\n"


def test_bytes_that_are_no_text_pass_through() -> None:
    assert pumped([b"\xff\x00", b"\xc3", b"\xa4\n"]) == b"> \xff\x00\xc3\xa4\n"


@given(CHUNKS)
def test_without_prefixes_the_output_is_the_input(chunks: list[bytes]) -> None:
    assert pumped(chunks, prefix=b"") == b"".join(chunks)


@given(CHUNKS)
def test_removing_the_prefixes_gives_the_input(chunks: list[bytes]) -> None:
    out = pumped(chunks, prefix=b"<P>")
    assert re.sub(rb"<P>", b"", out) == b"".join(chunks)


@given(CHUNKS)
def test_how_the_bytes_are_cut_makes_no_difference(chunks: list[bytes]) -> None:
    assert pumped(chunks) == pumped([b"".join(chunks)])


def test_an_unfinished_line_is_ended_before_anothers() -> None:
    reading, writing = os.pipe()
    console = Console(writing)
    first, second = LinePump(console, rank_prefix(0)), LinePump(console, rank_prefix(1))
    first.feed(b"10%\r20%\rhalf")
    second.feed(b"hello\n")
    first.close()
    second.feed(b"bye\n")
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        lines = stream.read().split(b"\n")
    assert lines == [
        b"[rank 0] 10%\r[rank 0] 20%\r",
        b"[rank 1] hello",
        b"[rank 0] half",
        b"[rank 1] bye",
        b"",
    ]


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    out = os.open(tmp_path / "out", os.O_CREAT | os.O_RDWR)
    pump = LinePump(Console(out), b"> ")
    for _ in range(40):
        pump.feed(b"x" * 65536)
    pump.feed(b"end\n")
    os.close(out)
    assert (tmp_path / "out").read_bytes() == b"> " + b"x" * 65536 * 40 + b"end\n"


def test_the_log_file_gets_every_byte_as_it_came(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    reading, writing = os.pipe()
    pump = LinePump(Console(writing), b"> ", log.open("wb", buffering=0))
    pump.feed(b"a\r\xff")
    assert log.read_bytes() == b"a\r\xff"
    pump.feed(b"b")
    pump.close()
    os.close(writing)
    os.close(reading)
    assert log.read_bytes() == b"a\r\xffb"
    assert pump.tail == b"a\r\xffb"


def test_a_log_on_a_full_disk_says_that_lines_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, room, write = tmp_path / "out", [400], os.write

    def limited(fd: int, data: bytes) -> int:
        left = room[0] - path.stat().st_size
        if left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data[:left])

    monkeypatch.setattr(os, "write", limited)
    out = os.open(path, os.O_CREAT | os.O_WRONLY)
    pump = LinePump(Console(out), b"> ")
    for i in range(100):
        pump.feed(b"line %d\n" % i)
    told = path.read_text().splitlines()
    assert told[-1].startswith("[trcomp] The disk is full: lines are lost")
    assert told[:-1] == [f"> line {i}" for i in range(len(told) - 1)]
    room[0] = 4000
    pump.feed(b"room again\n")
    os.close(out)
    assert path.read_text().splitlines() == [*told, "> room again"]


def test_a_log_file_that_cannot_be_written_is_told_of_once(tmp_path: Path) -> None:
    out = os.open(tmp_path / "out", os.O_CREAT | os.O_WRONLY)
    with Path("/dev/full").open("wb", buffering=0) as full:
        pump = LinePump(Console(out), b"> ", full)
        for text in (b"one\nhalf", b" of two\n", b"three\n"):
            pump.feed(text)
        pump.close()
    os.close(out)
    told, *lines = (tmp_path / "out").read_text().splitlines()
    assert told.startswith("[trcomp] /dev/full cannot be written: [Errno 28] No space left")
    assert lines == ["> one", "> half of two", "> three"]


def test_a_closed_console_stops_no_worker() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    pump = LinePump(Console(writing), b"> ")
    pump.feed(b"nobody reads this\n")
    os.close(writing)


def test_a_pump_thread_ends_with_its_stream() -> None:
    out_reading, out_writing = os.pipe()
    reading, writing = os.pipe()
    ends: list[str] = []
    pump = LinePump(Console(out_writing), b"> ")
    thread = start_pump(reading, pump, lambda: ends.append("end"))
    os.write(writing, b"one\ntwo")
    os.close(writing)
    thread.join(10)
    os.close(out_writing)
    assert ends == ["end"]
    with os.fdopen(out_reading, "rb") as stream:
        assert stream.read() == b"> one\n> two"
