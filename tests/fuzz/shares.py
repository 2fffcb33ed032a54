"""What one process of a run of the fuzzing draws: its share of the cases of every target."""

from __future__ import annotations

import random
import resource
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from tests.fuzz.draws import Draw
from tests.fuzz.targets import TARGETS, Target

_MEMORY_BYTES = 8 << 30
_TURN_SECONDS = 2.0
"""Before it is the next target's turn."""
BY_NAME = {target.name: target for target in TARGETS}


def run_case(target: Target, seed: int, number: int, directory: Path) -> None:
    """Run one case of a target, which these numbers make, in a directory."""
    target.case(Draw(random.Random(f"{seed}/{target.name}/{number}").randrange), directory)


def _place_of(error: BaseException) -> str:
    """Where something was raised: findings at one place are one finding."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {frame.filename}:{frame.lineno}"


@dataclass(frozen=True)
class Share:
    """What one process draws: the cases first, first + step, … of each target, up to a total."""

    targets: tuple[str, ...]
    seed: int
    first: int
    step: int
    cases: int
    minutes: float

    def run(self) -> tuple[Counter[str], Counter[str]]:
        """Run them, a while of each target in turn; the cases by target, the findings by place."""
        end = time.monotonic() + self.minutes * 60
        done, found = Counter[str](), Counter[str]()
        with tempfile.TemporaryDirectory(prefix="trcomp-fuzz-") as scratch:
            for name in cycle(self.targets):
                place = Path(scratch, name)
                place.mkdir(exist_ok=True)
                turn = time.monotonic() + _TURN_SECONDS
                while time.monotonic() < turn:
                    if done.total() >= self.cases or time.monotonic() > end:
                        return done, found
                    number = self.first + done[name] * self.step
                    try:
                        run_case(BY_NAME[name], self.seed, number, place)
                    except Exception as error:
                        where = _place_of(error)
                        if where not in found:
                            report = traceback.format_exc()
                            print(f"{name}, case {number}: {where}\n{report}", flush=True)
                        found[where] += 1
                    done[name] += 1
        raise AssertionError("There is no target.")


def limit() -> None:
    """Bound this process's memory; what is damaged need not warn."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    warnings.simplefilter("ignore")
