"""A contestant's side: waits for a line of JSON, runs steps, answers with a line of JSON.

    contestant                                      contest
    {"ready": true, "versions": {...}}      ->
                                            <-      {"steps": 3, "seconds": 5.0}
    {"steps": [[0.02, 0.03, 0.41], ...], "loss": 6.9}  ->
                                            <-      {"report": true}
    {"compiles": 2, "operations": 385, "peak_rss_bytes": ...}  ->

A step's three numbers are seconds: of the script's part, of all of the host's part, and of the
whole step until the device is done. The first two are processor time, so that neither other
processes nor the device's threads are in them; nothing runs on the device while the script's part
does, and that may have threads of its own (torch_xla's backward pass).

A contestant ends with its standard input. It needs the standard library alone: contestants live in
environments of their own.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol


class Contestant(Protocol):
    """What a contestant is made of."""

    versions: dict[str, str]

    def step(self) -> Any:
        """The script's part of a training step; its loss."""

    def start(self) -> None:
        """The rest of the host's part: start what the step asks for, without waiting."""

    def finish(self, loss: Any) -> None:
        """Wait until the device has computed the step."""

    def value(self, loss: Any) -> float:
        """A loss as a number."""

    def counts(self) -> dict[str, int | None]:
        """So far: compiles; of the last step: operations recorded."""


def serve(make: Callable[[str], Contestant]) -> None:
    """Serve the model that the command line names until standard input ends."""
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    contestant = make(sys.argv[1])
    answer({"ready": True, "versions": contestant.versions})
    for line in sys.stdin:
        request = json.loads(line)
        if "report" in request:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            answer({**contestant.counts(), "peak_rss_bytes": peak})
        else:
            answer(_steps(contestant, request["steps"], request["seconds"]))


def _steps(contestant: Contestant, number: int, seconds: float) -> dict[str, Any]:
    """Run some steps, fewer if they would take longer than that, one at least."""
    taken: list[tuple[float, float, float]] = []
    begin = time.perf_counter()
    while len(taken) < number and (not taken or time.perf_counter() - begin < seconds):
        start, used = time.perf_counter(), time.process_time()
        loss = contestant.step()
        script, used = time.process_time() - used, time.thread_time()
        contestant.start()
        host = script + time.thread_time() - used
        contestant.finish(loss)
        taken.append((script, host, time.perf_counter() - start))
    return {"steps": taken, "loss": contestant.value(loss)}
