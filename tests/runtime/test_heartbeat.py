"""When a rank says that it stopped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trcomp import flags, progress

pytestmark = pytest.mark.runtime

_SCRIPT = """
import time
from pathlib import Path
from trcomp import progress
from trcomp.runtime import heartbeat
from trcomp.runtime.metrics import counters

counters.steps = 1
heartbeat.install()
time.sleep(0.2)
before = time.monotonic()
heartbeat.note_collective("all_reduce")
print(before, time.monotonic())
while not progress.read(Path(".")):
    time.sleep(0.01)
"""


def test_a_rank_that_hangs_in_a_collective_says_when_it_began(tmp_path: Path) -> None:
    environ = os.environ | {flags.PROGRESS_DIR.name: str(tmp_path)}
    command = [sys.executable, "-c", _SCRIPT]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True, check=True
    )
    before, after = map(float, ended.stdout.split())
    (said,) = progress.read(tmp_path)
    assert before <= said.since <= after
