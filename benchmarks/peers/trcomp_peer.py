"""trcomp on the CPU: python -m benchmarks.peers.trcomp_peer MODEL lazy|compile"""

from __future__ import annotations

import sys

import jax
import torch
import transformers

import trcomp.runtime as rt
from benchmarks.models import MODELS, Trainer
from benchmarks.peers.serving import serve


class Trcomp:
    """Recorded operator by operator, or with the model and `optimizer.step` compiled."""

    def __init__(self, name: str) -> None:
        torch.set_num_threads(2)
        self.versions = {
            "torch": torch.__version__,
            "jax": jax.__version__,
            "transformers": transformers.__version__,
        }
        self.trainer = Trainer(MODELS[name](), "xla")
        if sys.argv[2] == "compile":
            compiled = torch.compile(self.trainer.model, backend="trcomp")
            self.trainer.model = compiled  # type: ignore[assignment]
            self.trainer.update = torch.compile(self.trainer.optimizer.step, backend="trcomp")
        rt.sync(wait=True)
        self.before = rt.metrics()
        self.operations = 0

    def step(self) -> torch.Tensor:
        """Record a step."""
        before = rt.metrics()["recorded_nodes"]
        loss = self.trainer.step()
        self.operations = rt.metrics()["recorded_nodes"] - before
        return loss

    def start(self) -> None:
        """Find its executable, or compile it, and start it."""
        rt.sync()

    def finish(self, loss: torch.Tensor) -> None:
        """Wait for the device."""
        rt.sync(wait=True)

    def value(self, loss: torch.Tensor) -> float:
        """A loss as a number."""
        return loss.item()

    def counts(self) -> dict[str, int | None]:
        """Executables compiled for steps, and operations of the last."""
        compiles = rt.metrics()["compiles"] - self.before["compiles"]
        return {"compiles": compiles, "operations": self.operations}


if __name__ == "__main__":
    serve(Trcomp)
