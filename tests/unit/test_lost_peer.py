"""What libraries say of a peer that is gone is understood, and nothing else."""

from __future__ import annotations

import pytest

from trcomp.lost_peer import BROKEN_CONNECTION


@pytest.mark.parametrize(
    "said",
    [
        "Gloo all-reduce failed: [pair.cc:552] Connection closed by peer [127.0.0.1]:41267",
        "Read error [10.0.0.2]:33152: Connection reset by peer",
        "ncclRemoteError: ... Connection closed by remote peer algo-2<43859>",
        "remote process exited or there was a network error, NCCL version 2.27.3",
        "possibly due to a network error or a remote process exiting prematurely",
        "[Errno 32] Broken pipe",
    ],
)
def test_a_peer_is_gone(said: str) -> None:
    assert BROKEN_CONNECTION.search(said)


@pytest.mark.parametrize("said", ["Connection refused", "RuntimeError: the file was closed by me"])
def test_no_peer_is_gone(said: str) -> None:
    assert not BROKEN_CONNECTION.search(said)
