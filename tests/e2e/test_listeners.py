"""Where a job can be reached from: on this machine from this machine alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trcomp import Estimator, Job, TrainingCompilerConfig, flags

pytestmark = [pytest.mark.e2e, pytest.mark.runtime]

_LOOPBACK = re.compile(r"[0-9A-F]{6}7F|0{16}F{4}0{4}[0-9A-F]{6}7F")
"""127.x.y.z in /proc/net/tcp, and in /proc/net/tcp6: four bytes each, the last first."""


@pytest.mark.slow
def test_all_of_a_jobs_servers_listen_at_loopback_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(flags.HOME.name, str(tmp_path))
    script = Path(__file__).parent / "scripts" / "listens.py"
    estimator = Estimator(script, instance_count=2, compiler_config=TrainingCompilerConfig())
    estimator.fit(logs="None", job_name="listens")
    line = next(line for line in Job.attach("listens").logs() if "LISTENS" in line)
    addresses = line.partition("LISTENS ")[2].split()
    assert addresses
    assert [one for one in addresses if not _LOOPBACK.fullmatch(one)] == []
