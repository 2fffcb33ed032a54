"""Hosts that watch each other: what each hears of another's end."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from trcomp import flags
from trcomp.entrypoint import host_link
from trcomp.entrypoint.host_link import HostLink
from trcomp.entrypoint.watchdog import Stall
from trcomp.env.topology import Topology, uniform
from trcomp.errors import SpecError

NAMES = ["algo-1", "algo-2", "algo-3"]


class Job:
    """Three hosts, each at a loopback address of its own."""

    def __init__(self, topology: Topology, port: int) -> None:
        self.topology, self.port = topology, port

    def link(self, host: int, token: str = "ours", silent_seconds: float = 30.0) -> HostLink:
        return HostLink(self.topology, host, self.port, token, silent_seconds)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setattr(host_link, "_OWN_REASON_SECONDS", 0.3)
    monkeypatch.setattr(host_link, "_ALIVE_SECONDS", 0.2)
    monkeypatch.setattr(host_link, "_CONNECT_SECONDS", 0.2)
    addresses = {name: f"127.66.7.{number}" for number, name in enumerate(NAMES, 1)}
    with socket.create_server((addresses["algo-1"], 0)) as probe:
        port = probe.getsockname()[1]
    yield Job(uniform(NAMES, 1, "cpu", addresses=addresses), port)


def heard(link: HostLink, seconds: float = 10.0) -> Stall:
    """Why a host must end, which it hears within this time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if stall := link.stall(lambda wait: None):
            return stall
        time.sleep(0.02)
    raise AssertionError("nothing was heard")


def meet(first: HostLink, *others: HostLink) -> None:
    """Wait until the first has heard from all others, and each of them from it."""
    deadline = time.monotonic() + 10
    while len(_named(first)) < len(others) or not all(map(_named, others)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def connected(place: tuple[str, int]) -> socket.socket:
    """A connection to a host that may not listen yet."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection(place)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def _named(link: HostLink) -> list[str]:
    return [connection.name for connection in tuple(link._connections) if connection.name]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_host_that_fails_ends_all_others(job: Job, failing: int) -> None:
    with job.link(0) as first, job.link(1) as second, job.link(2) as third:
        links = [first, second, third]
        meet(*links)
        links[failing].fail()
        for index, link in enumerate(links):
            if index != failing:
                stall = heard(link)
                assert stall.text == f"Host {NAMES[failing]} has failed, or was told to stop."
                assert stall.exit_code == 70 and stall.rank is None


def test_hosts_that_end_well_disturb_nobody(job: Job) -> None:
    with job.link(0) as first, ExitStack() as stack:
        second, third = (stack.enter_context(job.link(index)) for index in (1, 2))
        meet(first, second, third)
        stack.close()
        time.sleep(0.6)
        assert first.stall(lambda wait: None) is None
    with ExitStack() as stack, job.link(1) as second:
        meet(stack.enter_context(job.link(0)), second)
        stack.close()
        time.sleep(0.8)
        assert second.stall(lambda wait: None) is None


def test_last_words_arrive_though_the_others_speak_at_that_moment(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is closed with something unread takes the words on their way with it."""
    monkeypatch.setattr(host_link, "_ALIVE_SECONDS", 0.0)
    for _ in range(4):
        with ExitStack() as stack, job.link(1) as second:
            first = stack.enter_context(job.link(0))
            meet(first, second)
            speaker = second._connections[0]
            for _ in range(200):
                speaker.say("alive")
            stack.close()
            deadline = time.monotonic() + 5
            while not second._first_has_ended and time.monotonic() < deadline:
                assert second._lost is None
                time.sleep(0.01)
            assert second._first_has_ended


def test_a_host_that_is_killed_is_named(job: Job) -> None:
    with job.link(0) as first, job.link(1) as second, job.link(2) as third:
        meet(first, second, third)
        for connection in second._connections:
            connection.end.shutdown(socket.SHUT_RDWR)  # As the kernel does for a process that ends.
        assert heard(first).text == "Host algo-2 has ended without a word: it was killed."
        assert heard(third).text == "Host algo-2 has failed, or was told to stop."


@pytest.mark.parametrize("silent", [0, 2])
def test_a_host_that_falls_silent_is_named(
    job: Job, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = [job.link(index, silent_seconds=1.0) for index in range(3)]
    say, tongue_tied = links[silent]._say_to_all, threading.Event()
    monkeypatch.setattr(
        links[silent], "_say_to_all", lambda words: tongue_tied.is_set() or say(words)
    )
    with links[0], links[1], links[2]:
        meet(*links)
        tongue_tied.set()
        for index, link in enumerate(links):
            if index != silent:
                text = heard(link).text
                assert text.startswith(f"Host {NAMES[silent]} is not heard of any more")


def test_another_jobs_host_and_another_attempt_are_not_met(job: Job) -> None:
    with job.link(0, "ours-1") as first, job.link(1, "ours-0") as late:
        with connected(first._place) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n" + b"x" * 10_000 + b"\r\n")
            time.sleep(0.6)
        assert first.stall(lambda wait: None) is None and late.stall(lambda wait: None) is None
        assert not [one for one in first._connections if one.name]


def test_a_host_that_comes_first_waits_for_the_one_that_listens(job: Job) -> None:
    with job.link(1) as second:
        time.sleep(0.5)
        with job.link(0) as first:
            meet(first, second)
            first.fail()
            assert "algo-1 has failed" in heard(second).text


@pytest.mark.parametrize("port", ["99999", "-1", "banana"])
def test_a_port_that_cannot_be_is_told_before_workers_start(port: str) -> None:
    with pytest.raises(SpecError, match=rf"TRCOMP_HOSTS_PORT: got '{port}'; 0 to 65535"):
        flags.HOSTS_PORT.get({flags.HOSTS_PORT.name: port})
