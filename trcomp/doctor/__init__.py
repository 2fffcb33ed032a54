"""Checks of this machine: each reads facts, judges them, and says what to do.

readers, each in a thread --facts--> judge --> Finding(name, verdict, found, fix)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from trcomp.doctor import (
    cloud,
    containers,
    devices,
    fabric,
    limits,
    network,
    places,
    software,
)
from trcomp.doctor.findings import Asked, Check, Finding, problem

CHECKS: tuple[Check, ...] = (
    *software.CHECKS,
    *devices.CHECKS,
    *fabric.CHECKS,
    *places.CHECKS,
    *limits.CHECKS,
    *network.CHECKS,
    *containers.CHECKS,
    *cloud.CHECKS,
)
LIMIT_SECONDS = devices.PROBE_SECONDS + 30


def examine(
    asked: Asked, checks: Sequence[Check] = CHECKS, limit_seconds: float = LIMIT_SECONDS
) -> Iterator[Finding]:
    """What each check finds, in order. Nothing is changed.

    Args:
        asked: What is wanted of the machine.
        checks: Which checks.
        limit_seconds: How long one may take; what hangs is a problem, and is left behind.
    """
    facts = {read: _started(read, asked) for read in {check.read for check in checks}}
    for check in checks:
        try:
            found = check.judge(facts[check.read].result(limit_seconds), asked)
        except TimeoutError:
            found = problem(
                f"No answer within {limit_seconds:g} s.", "A mount or a driver may hang."
            )
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            found = problem(f"Could not be looked at: {what}.", "Report it to trcomp.")
        yield replace(found, name=check.name)


def _started(read: Callable[[Asked], Any], asked: Asked) -> Future[Any]:
    """Facts to come. The thread is no executor's: Python would wait for it as it ends."""
    facts: Future[Any] = Future()

    def fill() -> None:
        try:
            facts.set_result(read(asked))
        except BaseException as error:
            facts.set_exception(error)

    threading.Thread(target=fill, daemon=True).start()
    return facts
