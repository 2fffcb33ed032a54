"""How far a rank has come reaches its supervisor, on a full disk too."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trcomp import progress
from trcomp.progress import Progress

_WORDS = st.lists(st.tuples(st.integers(0, 10**9), st.text(max_size=40)), min_size=1, max_size=5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=_WORDS)
def test_who_cannot_write_a_new_file_writes_over_the_one_that_is_there(
    tmp_path: Path, words: list[tuple[int, str]]
) -> None:
    blocked = tmp_path / f".rank-1.{os.getpid()}"
    said = [Progress(1, os.getpid(), steps, 0.5 * steps, 1, text) for steps, text in words]
    if blocked.exists():  # From the last example.
        blocked.rmdir()
    progress.write(tmp_path, said[0])
    # As a full disk does, it keeps the next file from being made.
    blocked.mkdir()
    for one in said:
        progress.write(tmp_path, one)
        assert progress.read(tmp_path) == [one]


def test_nothing_is_left_of_a_file_that_could_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "rank-0.progress").mkdir()
    progress.write(tmp_path, Progress(0, os.getpid(), 3, 1.0))
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0.progress"]
