"""Hosts of one job that watch each other: one that dies, fails or falls silent ends the others.

host 0 listens <-- "trcomp TOKEN NAME" -- every other host
               <-- "alive" ... "alive" -->        every few seconds, both ways
               <-- "ended" | "failed NAME" -->    last words; host 0 passes on who has failed

XLA's ranks hear of it themselves, and say more; those of gloo may wait for half an hour, and NCCL's
for ten minutes. A host that cannot reach host 0's port goes on without: this only ends jobs sooner.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Self

from trcomp.entrypoint.watchdog import Stall
from trcomp.env import interfaces
from trcomp.env.topology import Topology
from trcomp.errors import PeerLostError

_ALIVE_SECONDS = 3.0
_OWN_REASON_SECONDS = 6.0
"""Ranks whose peers are gone mostly find so themselves, and say where they were."""
_TICK_SECONDS = 0.25
_CONNECT_SECONDS = 1.0
_LAST_WORDS_SECONDS = 1.0
_LONGEST_BYTES = 4096


class _Connection:
    """To another host, whose name is empty until it has said it."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.end, self.name = end, ""
        self.heard = time.monotonic()
        self._pending = b""

    def fileno(self) -> int:
        return self.end.fileno()

    def say(self, words: str) -> None:
        # A few bytes: what does not fit into the kernel's buffer would not be read either.
        with contextlib.suppress(OSError):
            self.end.send(f"{words}\n".encode())

    def lines(self) -> list[str]:
        """What has come; the last one is empty if no more will."""
        try:
            data = self.end.recv(_LONGEST_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data or len(self._pending) > _LONGEST_BYTES:
            return [""]
        self.heard = time.monotonic()
        *lines, self._pending = (self._pending + data).split(b"\n")
        return [line.decode(errors="replace") for line in lines if line]


class HostLink:
    """This host's connections to the others while its workers run.

    Args:
        topology: The job's hosts.
        host_index: This one among them.
        port: At which host 0 listens.
        token: What only this job's hosts know to say, and only while they start workers for the
            same time.
        silent_seconds: How long a host may say nothing.

    Attributes:
        poll_seconds: How often to ask for a `stall`.
    """

    poll_seconds = 1.0

    def __init__(
        self,
        topology: Topology,
        host_index: int,
        port: int,
        token: str,
        silent_seconds: float,
    ) -> None:
        self._names = {host.name for host in topology.hosts}
        self._own = topology.hosts[host_index].name
        self._serves = host_index == 0
        self._first_name = topology.master.name
        self._place = (topology.master.address, port)
        self._token = token
        self._silent_seconds = silent_seconds
        self._connections: list[_Connection] = []
        self._selector = selectors.DefaultSelector()
        self._lost: tuple[str, float] | None = None
        """What has become of another host, and from when on that ends this one."""
        self._first_has_ended = False
        self._failing = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trcomp-hosts", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is not None:
            self.fail()
        self._closing.set()
        self._thread.join(_LAST_WORDS_SECONDS + _CONNECT_SECONDS)

    def fail(self) -> None:
        """This host's workers have failed, or are told to stop."""
        self._failing.set()

    def stall(self, wait: Callable[[float], object]) -> Stall | None:
        """Why this host must end, if another one has."""
        if self._lost is None or time.monotonic() < self._lost[1]:
            return None
        text, since = self._lost
        return Stall(None, text, "See that host's log.", since, PeerLostError.exit_code)

    def _run(self) -> None:
        listener = self._listener() if self._serves else None
        spoken = 0.0
        with self._selector, contextlib.ExitStack() as stack:
            if listener is not None:
                stack.enter_context(listener)
                self._selector.register(listener, selectors.EVENT_READ)
            elif self._serves:
                return
            has_failed = False
            while not self._closing.is_set():
                if not self._serves and not self._connections and not self._first_has_ended:
                    self._connect()
                for key, _ in self._selector.select(_TICK_SECONDS):
                    if key.fileobj is listener:
                        self._accept(listener)
                    elif isinstance(key.fileobj, _Connection):
                        self._hear(key.fileobj)
                self._miss_silent()
                if self._failing.is_set() and not has_failed:
                    has_failed = True
                    self._say_to_all(f"failed {self._own}")
                if time.monotonic() - spoken > _ALIVE_SECONDS:
                    spoken = time.monotonic()
                    self._say_to_all("alive")
            self._say_to_all(f"failed {self._own}" if self._failing.is_set() else "ended")
            self._take_leave()

    def _take_leave(self) -> None:
        """Close once the last words are read: the kernel drops them if something here is unread."""
        deadline = time.monotonic() + _LAST_WORDS_SECONDS
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.end.shutdown(socket.SHUT_WR)
                connection.end.settimeout(max(deadline - time.monotonic(), 0.001))
                while connection.end.recv(_LONGEST_BYTES):
                    pass
            connection.end.close()

    def _listener(self) -> socket.socket | None:
        address = interfaces.own_address(self._place[0])
        if address is None:
            return None  # Others may look for this host anywhere; it listens at the job's address.
        with contextlib.suppress(OSError):
            # Of an earlier run of the workers connections may be left.
            listener = socket.create_server((address, self._place[1]), backlog=1024)
            listener.setblocking(False)
            return listener
        return None

    def _connect(self) -> None:
        try:
            end = socket.create_connection(self._place, _CONNECT_SECONDS)
        except OSError:
            self._closing.wait(_CONNECT_SECONDS)
            return
        connection = _Connection(end)
        connection.say(f"trcomp {self._token} {self._own}")
        self._add(connection)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self._add(_Connection(listener.accept()[0]))

    def _add(self, connection: _Connection) -> None:
        self._connections.append(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, connection: _Connection) -> None:
        for line in connection.lines():
            word, _, rest = line.partition(" ")
            if not connection.name:
                connection.name = self._name_of(word, rest)
                if connection.name and self._serves:
                    connection.say("alive")
            elif word == "failed" and rest in self._names:
                self._lose(rest, f"Host {rest} has failed, or was told to stop.")
            elif word == "lost" and rest in self._names:
                self._lose(rest, _silent(rest), at_once=True)
            elif not word:
                name = connection.name
                self._lose(name, f"Host {name} has ended without a word: it was killed.")
            if word in ("", "ended", "failed") or not connection.name:
                self._first_has_ended |= word == "ended"
                self._drop(connection)
                return

    def _name_of(self, word: str, rest: str) -> str:
        """Who begins like this; empty if it is none of this job's hosts."""
        if not self._serves:
            return self._first_name if word == "alive" else ""
        token, _, name = rest.partition(" ")
        return name if word == "trcomp" and token == self._token and name in self._names else ""

    def _miss_silent(self) -> None:
        now = time.monotonic()
        for connection in tuple(self._connections):
            if now - connection.heard > self._silent_seconds:
                self._drop(connection)
                if connection.name:
                    self._lose(connection.name, _silent(connection.name), at_once=True)

    def _drop(self, connection: _Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._selector.unregister(connection)
            connection.end.close()

    def _lose(self, name: str, text: str, *, at_once: bool = False) -> None:
        if self._lost is None:
            moment = time.monotonic()
            self._lost = text, moment if at_once else moment + _OWN_REASON_SECONDS
            if self._serves:
                self._say_to_all(f"{'lost' if at_once else 'failed'} {name}")

    def _say_to_all(self, words: str) -> None:
        for connection in self._connections:
            if connection.name:
                connection.say(words)


def _silent(name: str) -> str:
    return f"Host {name} is not heard of any more: it is down, stopped, or cut off."
