"""Fuzzes all targets until a number of cases or of minutes: python -m tests.fuzz

Each core draws cases of its own, of every target for equally long: one whose cases cost ten times
those of another has a tenth of their number. Each case is made of a seed and its number alone, so
what is found can be run again:

    python -m tests.fuzz --targets report --seed 7 --case 1234

--coverage has libFuzzer look for new paths in one target after the other (pip install atheris), for
--minutes each or until the first finding. What it learns is kept in build/fuzz: the next run goes
on from there. A finding is run again with its file:

    python -m tests.fuzz --coverage --targets report --input build/fuzz/report-crash-…

A process may take 8 GiB: a case that wants more is a finding too.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

from tests.fuzz.draws import Draw
from tests.fuzz.shares import BY_NAME, Share, limit, run_case
from tests.fuzz.targets import NEEDS_JAX, Target

_KEPT = Path("build/fuzz")


def fuzz(targets: Sequence[str], seed: int, cases: int, minutes: float, processes: int) -> int:
    """Run cases of the targets in processes; gives the number of places that failed."""
    begin = time.monotonic()
    done, found = Counter[str](), Counter[str]()
    shares = [
        Share(tuple(targets), seed, first, processes, -(-cases // processes), minutes)
        for first in range(processes)
    ]
    # A fork of a process that has threads, as jax starts them, may hang.
    with ProcessPoolExecutor(processes, get_context("spawn"), limit) as pool:
        for its_done, its_found in pool.map(Share.run, shares):
            done += its_done
            found += its_found
    for name in targets:
        print(f"{name:<16}{done[name]:>10,} cases")
    took = (time.monotonic() - begin) / 60
    print(
        f"{'all':<16}{done.total():>10,} cases of seed {seed} in {took:.1f} minutes, "
        f"{len(found)} findings"
    )
    if done.total() < cases:
        print(f"The time was up before {cases:,} cases; --minutes gives more.")
    return len(found)


def cover_each(targets: Sequence[str], minutes: float) -> int:
    """Let libFuzzer search each target in a process of its own; gives how many had a finding."""
    found = []
    for name in targets:
        if name in NEEDS_JAX and find_spec("jax") is None:
            print(f"{name} is left out: jax is not installed.", flush=True)
            continue
        options = ["--coverage", "--targets", name, "--minutes", str(minutes)]
        if subprocess.run([sys.executable, "-m", "tests.fuzz", *options], check=False).returncode:
            found.append(name)
    print(f"{len(targets)} targets, findings in {', '.join(found) or 'none'}")
    return len(found)


def cover(target: Target, seconds: float, given: str | None) -> None:
    """Let libFuzzer search one target, guided by the code's coverage, or run one input alone."""
    import atheris  # Only who asks for it needs it.

    atheris.instrument_all()
    corpus = _KEPT / target.name
    corpus.mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={seconds:.0f}", "-max_len=4096", "-print_final_stats=1"]
    # From the start as long as the cases are: of a few bytes nothing is damaged.
    options += ["-len_control=0", f"-artifact_prefix={corpus}-", given or str(corpus)]
    with tempfile.TemporaryDirectory(prefix="trcomp-fuzz-") as scratch:

        def one(data: bytes) -> None:
            provider = atheris.FuzzedDataProvider(data)
            draw = Draw(lambda count: provider.ConsumeIntInRange(0, count - 1))
            target.case(draw, Path(scratch))

        atheris.Setup([sys.argv[0], *options], one)
        atheris.Fuzz()


def main() -> int:
    """Fuzz as the command line says; 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--targets", nargs="+", choices=BY_NAME, default=[*BY_NAME])
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--cases", type=int, default=1_000_000, help="in all")
    parser.add_argument("--minutes", type=float, default=60.0, help="at most")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--case", type=int, help="run this case of the first target alone")
    parser.add_argument("--coverage", action="store_true", help="guided by the code's coverage")
    parser.add_argument("--input", help="with --coverage: run this file alone")
    words = parser.parse_args()
    if not words.coverage and words.case is None:
        print(f"seed {words.seed}", flush=True)
        found = fuzz(words.targets, words.seed, words.cases, words.minutes, words.processes)
        return int(found > 0)
    if words.coverage and len(words.targets) > 1:
        return int(cover_each(words.targets, words.minutes) > 0)
    limit()
    target = BY_NAME[words.targets[0]]
    if words.coverage:
        cover(target, words.minutes * 60, words.input)
        return 0
    with tempfile.TemporaryDirectory(prefix="trcomp-fuzz-") as scratch:
        run_case(target, words.seed, words.case, Path(scratch))
    return 0


if __name__ == "__main__":
    sys.exit(main())
