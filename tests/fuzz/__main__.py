"""Fuzzes all targets in turn until a number of cases or of minutes: python -m tests.fuzz

Each case is made of a seed and its number alone, so what is found can be run again:

    python -m tests.fuzz --targets report --seed 7 --case 1234

--coverage has libFuzzer look for new paths in one target (pip install atheris); it ends at the
first finding. The process may take 8 GiB: a case that wants more is a finding too.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

from tests.fuzz.draws import Draw
from tests.fuzz.targets import TARGETS, Target

_MEMORY_BYTES = 8 << 30
_TURN_SECONDS = 2.0
"""Before it is the next target's turn: cases of one may take ten times those of another."""


def _run(target: Target, seed: int, number: int, directory: Path) -> None:
    target.case(Draw(random.Random(f"{seed}/{target.name}/{number}").randrange), directory)


def _place_of(error: BaseException) -> str:
    """Where something was raised: findings at one place are one finding."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {frame.filename}:{frame.lineno}"


def fuzz(targets: list[Target], seed: int, cases: int, minutes: float) -> int:
    """Run cases of the targets in turn; gives the number of places that failed."""
    end = time.monotonic() + minutes * 60
    done, found = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="trcomp-fuzz-") as scratch:
        places = {target.name: Path(scratch, target.name) for target in targets}
        for place in places.values():
            place.mkdir()
        while done.total() < cases and time.monotonic() < end:
            for target in targets:
                turn = time.monotonic() + _TURN_SECONDS
                while time.monotonic() < turn:
                    number = done[target.name]
                    try:
                        _run(target, seed, number, places[target.name])
                    except Exception as error:
                        where = _place_of(error)
                        if where not in found:
                            print(f"{target.name}, case {number}: {where}", flush=True)
                            traceback.print_exc()
                        found[where] += 1
                    done[target.name] += 1
    for name, count in done.items():
        print(f"{name:<16}{count:>10,} cases")
    print(f"{'all':<16}{done.total():>10,} cases of seed {seed}, {len(found)} findings")
    return len(found)


def cover(target: Target, seconds: float) -> None:
    """Let libFuzzer search one target, guided by the code's coverage."""
    import atheris  # Only who asks for it needs it.

    atheris.instrument_all()
    with tempfile.TemporaryDirectory(prefix="trcomp-fuzz-") as scratch:

        def one(data: bytes) -> None:
            provider = atheris.FuzzedDataProvider(data)
            draw = Draw(lambda count: provider.ConsumeIntInRange(0, count - 1))
            target.case(draw, Path(scratch))

        atheris.Setup([sys.argv[0], f"-max_total_time={seconds:.0f}", "-max_len=4096"], one)
        atheris.Fuzz()


def main() -> int:
    """Fuzz as the command line says; 1 if something was found."""
    names = [target.name for target in TARGETS]
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--targets", nargs="+", choices=names, default=names)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--cases", type=int, default=1_000_000, help="in all")
    parser.add_argument("--minutes", type=float, default=30.0, help="at most")
    parser.add_argument("--case", type=int, help="run this case of the first target alone")
    parser.add_argument(
        "--coverage", action="store_true", help="guide the first target by coverage"
    )
    words = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    warnings.simplefilter("ignore")
    targets = [target for target in TARGETS if target.name in words.targets]
    print(f"seed {words.seed}", flush=True)
    if words.coverage:
        cover(targets[0], words.minutes * 60)
        return 0
    if words.case is not None:
        with tempfile.TemporaryDirectory(prefix="trcomp-fuzz-") as scratch:
            _run(targets[0], words.seed, words.case, Path(scratch))
        return 0
    return int(fuzz(targets, words.seed, words.cases, words.minutes) > 0)


if __name__ == "__main__":
    sys.exit(main())
