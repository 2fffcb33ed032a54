"""Durations and deadlines go by a clock that nobody sets, and moments by the one on the wall."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import trcomp

PACKAGE = Path(trcomp.__file__).parent
MOMENTS = {
    "backends/base.py entered": "When a job entered a state, in its record.",
    "backends/docker_host.py _blame_memory": "The time of a file, where there was none.",
    "backends/runner.py _reap": "Compared with the times of other hosts' files.",
    "backends/sagemaker.py _settling": "Compared with the time that SageMaker gives; 15 s at most.",
    "compat/torch_xla/debug/metrics.py metric_data": "torch_xla gives seconds since the epoch.",
    "doctor/cloud.py compared": "The clock itself is looked at.",
    "doctor/cloud.py read_clock": "The clock itself is looked at.",
    "entrypoint/failure.py file_time": "The time of a file.",
    "estimator.py _new_name": "A name.",
    "follow.py _summarise": "Since a moment in a record: for a reader.",
    "job_page.py _tiles": "Since a moment in a record: for a reader.",
    "panel.py job_text": "Since a moment in a record: for a reader.",
    "runtime/measuring.py _line": "When a stretch of steps ended, in metrics.jsonl.",
    "testing/cloudwatch.py _send": "When a line of a log was written.",
    "testing/training.py __init__": "When a job was created.",
    "testing/training.py _enter": "When a job entered a state.",
    "top_command.py _head": "Since a moment in a record: for a reader.",
    "top_command.py look": "Since a moment in metrics.jsonl: for a reader.",
}
"""Functions that may look at the clock on the wall, and what for."""
_WALL = {("time", "time"), ("time", "time_ns"), ("clock", "time"), ("clock", "time_ns")}
_WALL |= {("datetime", name) for name in ("now", "utcnow", "today")} | {("date", "today")}


def _readers(path: Path) -> Iterator[str]:
    """The functions of a file that read the clock on the wall."""
    tree = ast.parse(path.read_text())
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            names = {alias.name for alias in node.names}
            assert not names & {"time", "time_ns"}, (
                f"{path}: `import time`, so that it is seen here"
            )
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            continue
        if (node.value.id, node.attr) in _WALL:
            around = [f for f in functions if f.lineno <= node.lineno <= (f.end_lineno or 0)]
            inner = max(around, key=lambda f: f.lineno).name if around else "the module"
            yield f"{path.relative_to(PACKAGE).as_posix()} {inner}"


def test_the_clock_on_the_wall_is_read_for_moments_alone() -> None:
    found = {one for path in sorted(PACKAGE.rglob("*.py")) for one in _readers(path)}
    assert found - set(MOMENTS) == set(), "time.monotonic() measures; a moment is listed here"
    assert set(MOMENTS) - found == set()
