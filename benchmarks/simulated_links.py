"""Hosts that watch each other: a thread for each, and its real connection to the first."""

from __future__ import annotations

import resource
import socket
import threading
import time
from typing import Any

from trcomp.entrypoint.host_link import HostLink
from trcomp.env.topology import uniform

_ADDRESS = "127.77.0.1"
_SILENT_SECONDS = 600.0
"""Threads that share two cores: how long one is silent says nothing."""
_STACK_BYTES = 1 << 18


def failure(num_hosts: int) -> dict[str, Any]:
    """Seconds until all hosts have met, and from the failure of one until all others know it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    threading.stack_size(_STACK_BYTES)
    names = [f"algo-{number}" for number in range(1, num_hosts + 1)]
    topology = uniform(names, 8, "cpu", addresses=dict.fromkeys(names, _ADDRESS))
    with socket.create_server((_ADDRESS, 0)) as probe:
        port = probe.getsockname()[1]
    links = [HostLink(topology, host, port, "ours", _SILENT_SECONDS) for host in range(num_hosts)]
    begin = time.monotonic()
    for link in links:
        link.__enter__()
    while sum(bool(one.name) for one in tuple(links[0]._connections)) < num_hosts - 1:
        time.sleep(0.02)
    met = time.monotonic()
    links[-1].fail()
    while not all(link._lost for link in links[:-1]):
        time.sleep(0.005)
    return {
        "meet_seconds": round(met - begin, 2),
        "told_seconds": round(time.monotonic() - met, 2),
        "hosts_told": num_hosts - 1,
    }
