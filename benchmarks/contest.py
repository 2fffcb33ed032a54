"""Contestants side by side: one process each, told in turn to run a few steps.

Only one of them computes at a time, and turns go round, so that a drift of the machine touches all
alike and ratios come from one run. benchmarks/peers/serving.py has the other side.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_OWN = Path(sys.executable)
_PATIENCE_SECONDS = 180.0
"""After which a contestant that does not answer has failed: it imports, builds or compiles."""


@dataclass(frozen=True)
class Peer:
    """A kind of contestant: an interpreter, a module and its arguments, and the models it has."""

    python: Path
    module: str
    arguments: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    """All of them if empty."""

    def obstacle(self) -> str | None:
        """What keeps it from taking part here, and what helps; None if nothing does."""
        if not self.python.exists():
            return f"{self.python.relative_to(ROOT)} is not there: `make peers` makes it"
        if self.arguments == ("inductor",) and not any(map(shutil.which, ("g++", "clang++"))):
            return "inductor needs a C++ compiler, g++ or clang++"
        return None


def _venv(name: str) -> Path:
    return ROOT / "build" / "peers" / name / "bin" / "python"


PEERS = {
    "eager": Peer(_OWN, "torch_peer", ("eager",)),
    "trcomp": Peer(_OWN, "trcomp_peer", ("lazy",)),
    "trcomp-compile": Peer(_OWN, "trcomp_peer", ("compile",)),
    "torch_xla": Peer(_venv("torch_xla"), "torch_xla_peer", ("lazy",)),
    "flax": Peer(_venv("flax"), "flax_peer", (), ("vit", "gpt2", "resnet50-64px")),
    "openxla": Peer(_venv("torch_xla"), "torch_xla_peer", ("openxla",)),
    "inductor": Peer(_OWN, "torch_peer", ("inductor",)),
}

RECORDERS = ("trcomp", "trcomp-compile", "torch_xla")
"""Those whose host records a step and then starts it; the others' computes meanwhile."""


class Failed(Exception):
    """A contestant ended, or did not answer in time; the text says why."""


@dataclass
class Step:
    """Seconds of processor time of the script and of all of the host; seconds until all is done."""

    script: float
    host: float
    device: float


@dataclass
class Contestant:
    """One process that trains one model.

    It starts at once; what it measured is in `early`, its first steps in their order, and `turns`,
    the counted steps of each.
    """

    peer: Peer
    model: str
    early: list[Step] = field(default_factory=list)
    turns: list[list[Step]] = field(default_factory=list)
    loss: float | None = None
    """That of the first step."""
    versions: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int | None] = field(default_factory=dict)
    """Compiles, operations of a step, `peak_rss_bytes`: the most memory it ever had."""

    def __post_init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory()
        self._errors = Path(self._scratch.name) / "stderr"
        # -P would hide benchmarks; torch_xla's environment sees trcomp's entry points as well.
        own = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PJRT_DEVICE": "CPU", "NPROC": "2"}
        own |= {"TORCHINDUCTOR_CACHE_DIR": self._scratch.name, "JAX_PLATFORMS": "cpu"}
        module = f"benchmarks.peers.{self.peer.module}"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [self.peer.python, "-m", module, self.model, *self.peer.arguments],
                cwd=ROOT,
                env=os.environ | own,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._answers: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def get_ready(self) -> None:
        """Wait until it has imported and built all it needs."""
        self.versions = self._answer()["versions"]

    def first(self) -> None:
        """Run the first step."""
        self.early += self._run(1, _PATIENCE_SECONDS)

    def warm_up(self, number: int, seconds: float) -> None:
        """Run the steps after the first, which are not counted: some compile again."""
        self.early += self._run(number, seconds)

    def turn(self, number: int, seconds: float) -> None:
        """Run some steps. The first only refills the caches, which another has used since."""
        taken = self._run(number + 1, seconds)
        self.turns.append(taken[1:] or taken)

    def report(self) -> None:
        """Ask for its `counts`."""
        self._send({"report": True})
        self.counts = self._answer()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._reader.join()
        with suppress(BrokenPipeError), self._process:
            pass  # Closes its pipes, where a request may be left, and waits for it.
        self._scratch.cleanup()

    def _run(self, number: int, seconds: float) -> list[Step]:
        """Run some steps, fewer if they would take longer than that, one at least."""
        self._send({"steps": number, "seconds": seconds})
        answer = self._answer()
        if self.loss is None:
            self.loss = answer["loss"]
        return [Step(*times) for times in answer["steps"]]

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Failed(self._last_words()) from None

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=_PATIENCE_SECONDS)
        except queue.Empty:
            raise Failed(f"no answer in {_PATIENCE_SECONDS:.0f} s") from None
        if not line:
            raise Failed(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def _last_words(self) -> str:
        code = self._process.wait()
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        told = [line for line in lines if line and not line[0].isspace()]
        return told[-1][:200] if told else f"exit code {code}"


def chosen(kind: str, wanted: Sequence[str] | None, there: Sequence[str]) -> list[str]:
    """The names that were asked for, each also by its beginning; all without a choice.

    Raises:
        SystemExit: With 64: there is no such name.
    """
    if not wanted:
        return list(there)
    found = []
    for text in wanted:
        names = [name for name in there if name == text] or [n for n in there if n.startswith(text)]
        if not names:
            print(f"no {kind} {text!r}; there are {', '.join(there)}", file=sys.stderr)
            raise SystemExit(64)
        found += [name for name in names if name not in found]
    return found
