"""Runs an example twice: by plain torch on the CPU, and as a trcomp job; what each left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trcomp import Estimator, TrainingCompilerConfig, flags

EXAMPLES = Path(__file__).parents[2] / "examples"
RUNNER = Path(__file__).with_name("plain.py")
Words = dict[str, Any]


@dataclass(frozen=True)
class Trained:
    """What a job left: its directory of results, and the report of each rank."""

    output: Path
    ranks: list[dict[str, Any]]

    def counts(self, name: str) -> list[Any]:
        """One counter of each rank."""
        return [rank[name] for rank in self.ranks]

    def new_graphs(self, first: int, last: int | None = None) -> list[int]:
        """Step barriers from `first` to before `last` after which any rank met a new graph."""
        met = {step for rank in self.ranks for step in rank["new_graph_steps"]}
        return sorted(step for step in met if first <= step and (last is None or step < last))


def train(
    example: str | Path, devices: int, place: Path, words: Words, name: str = "trcomp"
) -> Trained:
    """Run an example as a job on virtual CPU devices, with these hyperparameters.

    Args:
        example: A directory of examples/, or another script.
        devices: Its ranks.
        place: Where its home is; jobs of one place share executables.
        words: The hyperparameters.
        name: Of the directory of its results.
    """
    output = place / name
    script = EXAMPLES / example / "train.py" if isinstance(example, str) else example
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRCOMP_HOME", str(place / "home"))
        patch.setenv("GPU_NUM_DEVICES", str(devices))
        patch.setenv(flags.CACHE.name, str(place / "executables"))
        estimator = Estimator(
            script.name,
            script.parent,
            instance_type="local_process",
            compiler_config=TrainingCompilerConfig(),
            hyperparameters={"output_dir": str(output), **words},
        )
        estimator.fit(logs=False)
        job = estimator.latest_training_job
        assert job is not None
        return Trained(output, job.report()["ranks"])


class Plain:
    """An example on the CPU by torch alone, under torchrun if it has several ranks; runs beside."""

    def __init__(self, example: str, devices: int, place: Path, words: Words) -> None:
        self._output = place / "plain"
        script = (str(RUNNER), str(EXAMPLES / example / "train.py"))
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={devices}"]
        options = [text for name, value in words.items() for text in (f"--{name}", str(value))]
        self._process = subprocess.Popen(
            [
                *(sys.executable, *(torchrun if devices > 1 else [])),
                *(*script, "--output_dir", str(self._output), *options),
            ],
            env={k: v for k, v in os.environ.items() if not k.startswith("TRCOMP_")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *raised: object) -> None:
        # Where the job failed nobody waits for the reference: torchrun ends its ranks on SIGTERM.
        self._process.terminate()
        self._process.communicate()

    def output(self) -> Path:
        """Its directory of results, when it has ended."""
        said, _ = self._process.communicate(timeout=240)
        assert self._process.returncode == 0, said
        return self._output


def history(output: Path) -> Any:
    """What an example wrote about its losses."""
    path = output / "history.json"
    return json.loads((path if path.exists() else output / "trainer_state.json").read_text())


def both(
    example: str, devices: int, place: Path, words: Words, plain: Words | None = None
) -> tuple[Trained, Any, Any]:
    """The job, its history, and that of plain torch with `plain` added to, or for, `words`."""
    with Plain(example, devices, place, {**words, **(plain or {})}) as reference:
        trained = train(example, devices, place, words)
        return trained, history(trained.output), history(reference.output())
