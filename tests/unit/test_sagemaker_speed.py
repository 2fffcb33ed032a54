"""What launching may cost: time of a plan, memory of a log."""

from __future__ import annotations

import time
from pathlib import Path

from tests.unit.test_sagemaker_logs import Logs, everything
from tests.unit.test_sagemaker_plan import code, estimator

__all__ = ["code"]


def test_a_plan_of_two_thousand_files_takes_less_than_a_second(code: Path) -> None:
    for number in range(2000):
        path = code / f"part{number % 40}" / f"module{number}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"VALUE = {number}\n")
    job = estimator(code)
    seconds = []
    for _ in range(3):
        # Another process of this machine is no fault of the plan's.
        begin = time.process_time()
        plan = job.plan(job_name="large")
        seconds.append(time.process_time() - begin)
    assert len(plan.files) == 2001
    assert min(seconds) < 1.0


def test_a_log_of_many_streams_is_read_in_parts(code: Path) -> None:
    logs = Logs(page_size=10_000, empty_pages=0)
    limits = set()
    get = logs.get_log_events

    def noted(**given: object) -> object:
        limits.add(given["limit"])
        return get(**given)

    logs.get_log_events = noted  # type: ignore[method-assign, assignment]
    for host in range(400):
        logs.put(f"job/algo-{host}-17", "x")
    assert len(everything(logs, {})[0]) == 400
    assert limits == {500}
