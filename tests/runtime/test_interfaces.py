"""Where a job's servers listen, and whom its ranks refuse to meet."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.rank_scripts import start_ranks, wait_for
from trcomp.env import interfaces

pytestmark = pytest.mark.runtime


def _addresses(monkeypatch: pytest.MonkeyPatch, **names: list[str]) -> None:
    def found(host: str, *_: Any) -> list[Any]:
        if host not in names:
            raise socket.gaierror(host)
        return [(socket.AF_INET, None, 0, "", (address, 0)) for address in names[host]]

    monkeypatch.setattr(socket, "getaddrinfo", found)


def test_a_server_listens_where_others_look_for_it_if_that_is_certain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = socket.gethostbyname(socket.gethostname())
    elsewhere = "192.0.2.1"  # RFC 5737: nobody's.
    hosts = {"here": [own], "there": [elsewhere], "both": [own, elsewhere], "debian": ["127.0.1.1"]}
    _addresses(monkeypatch, **hosts)
    # A machine's own name leads to a loopback address on some: others would look elsewhere.
    certain = None if own.startswith("127.") else own
    assert interfaces.own_address("here") == certain
    for uncertain in ("there", "both", "debian", "nowhere", ""):
        assert interfaces.own_address(uncertain) is None
    assert interfaces.own_address("127.4.5.6") == "127.4.5.6"
    assert interfaces.own_address("localhost") == "127.0.0.1"


def test_rank_0_serves_where_it_is_told_to() -> None:
    assert interfaces.bind_address("127.1.2.3:43857", {}) == "127.1.2.3:43857"
    told = {"JAX_COORDINATOR_BIND_ADDRESS": "[::]:1"}
    assert interfaces.bind_address("127.1.2.3:43857", told) == "[::]:1"
    assert interfaces.bind_address("nowhere.invalid:43857", {}) is None


def test_the_ranks_of_another_job_are_refused(tmp_path: Path) -> None:
    script = """
        import os
        os.environ["TRCOMP_JOB_NAME"] = "job-" + os.environ["RANK"]

        import trcomp.runtime as rt

        rt.rendezvous("anywhere")
    """
    first, second = start_ranks(script, tmp_path, 2)
    text = second.communicate()[0]
    first.kill()  # It waits for a rank of its own job.
    wait_for([first])
    assert "Rank 1 has met the ranks of another job at 127." in text
    assert second.returncode != 0
