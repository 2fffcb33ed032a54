"""Runs a script as the ranks of one job on this machine, as the entrypoint starts its workers."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

from trcomp import flags
from trcomp.env.topology import uniform
from trcomp.env.variables import applied, for_rank

_SECONDS = 240
_AT_THE_END = "import atexit; from trcomp import gloo; atexit.register(gloo.let_finish)"
"""In a script's empty first line. As a worker does: no thread of gloo's may outlive Python."""

FOUND = "FOUND "
"""Before the line of JSON that tells what a rank found."""
TRAINING = """
    import json

    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel

    import trcomp
    import trcomp.runtime as rt

    rank, world, device = rt.rank(), rt.world_size(), rt.device()
    torch.manual_seed(0)
    inputs, labels = torch.randn(8, 6), torch.randint(3, (8,))
    mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
    found = {"rank": rank}


    def make_model():
        torch.manual_seed(1)
        layers = [torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)]
        return torch.nn.Sequential(*layers).to(device)

"""
"""How a script begins whose ranks train on their parts of one batch, by `train(kind)`."""
TRAIN = f"""

    train("optimizer_step")
    if world > 1:
        dist.init_process_group("xla", init_method="env://")
        train("ddp")
    print("{FOUND}" + json.dumps(found))
"""
"""How it ends."""


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it printed (stdout and stderr together)."""

    code: int
    text: str


def start_ranks(
    script: str, folder: Path, num_ranks: int, environ: Mapping[str, str] | None = None
) -> list[subprocess.Popen[str]]:
    """Start one process per rank of a job at an address of this test's own."""
    path, script = folder / "script.py", dedent(script)
    path.write_text(f"{_AT_THE_END}{script}" if script[0] == "\n" else script)
    # Tests that run at the same time use the same ports.
    own = hashlib.sha256(f"{folder} {len(os.listdir(folder))}".encode()).digest()
    address = f"127.{own[0] % 127 + 1}.{own[1]}.{own[2] % 254 + 1}"
    topology = uniform(["algo-1"], num_ranks, "cpu", addresses={"algo-1": address})
    ours = {flags.WORKER.name: "1", flags.TOPOLOGY.name: topology.to_json()}
    if num_ranks > 1:
        ours[flags.COORDINATOR.name] = topology.coordinator
    base = {**os.environ, **ours, **(environ or {})}
    return [
        subprocess.Popen(
            [sys.executable, str(path)],
            env=applied(base, for_rank(topology, rank, num_cpus=2)),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in topology.ranks()
    ]


def wait_for(processes: list[subprocess.Popen[str]]) -> list[Ended]:
    """How each process ended; none outlives this call."""
    try:
        texts = [process.communicate(timeout=_SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
    return [Ended(p.returncode, text) for p, text in zip(processes, texts, strict=True)]


def run_ranks(
    script: str, folder: Path, num_ranks: int = 2, environ: Mapping[str, str] | None = None
) -> list[Ended]:
    """Run a script as the ranks of a job, to the end."""
    return wait_for(start_ranks(script, folder, num_ranks, environ))


def found_by_ranks(script: str, folder: Path, num_ranks: int) -> list[dict[str, Any]]:
    """What each rank of a job found, by the line that it printed."""
    ended = run_ranks(script, folder, num_ranks)
    assert [end.code for end in ended] == [0] * num_ranks, ended
    lines = [line for end in ended for line in end.text.splitlines() if FOUND in line]
    return [json.loads(line.split(FOUND)[1]) for line in lines]


def run_script(
    script: str, folder: Path, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script as a user does, outside any job."""
    path = folder / "script.py"
    path.write_text(dedent(script))
    return subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **(environ or {})},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
