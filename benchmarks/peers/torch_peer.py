"""PyTorch on the CPU: python -m benchmarks.peers.torch_peer MODEL eager|inductor"""

from __future__ import annotations

import sys
from typing import Any

import torch
import transformers

from benchmarks.models import MODELS, Trainer
from benchmarks.peers.serving import serve


class Torch:
    """Operator by operator, or with the model compiled by inductor, as users write it."""

    def __init__(self, name: str) -> None:
        torch.set_num_threads(2)
        self.versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        self.compiles = 0
        self.trainer = Trainer(MODELS[name](), "cpu")
        if sys.argv[2] == "inductor":
            self.trainer.model = torch.compile(self.trainer.model, backend=self._inductor)  # type: ignore[assignment]

    def _inductor(self, module: Any, inputs: Any) -> Any:
        """The backend of that name, which counts what it compiles."""
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.compiles += 1
            return compile_fx_inner(*args, **kwargs)

        return compile_fx(module, inputs, inner_compile=counted)

    def step(self) -> torch.Tensor:
        """A whole step: torch has computed it when it returns."""
        return self.trainer.step()

    def start(self) -> None:
        """Nothing is left to do."""

    def finish(self, loss: torch.Tensor) -> None:
        """Nothing is left to wait for."""

    def value(self, loss: torch.Tensor) -> float:
        """A loss as a number."""
        return loss.item()

    def counts(self) -> dict[str, int | None]:
        """What inductor compiled."""
        return {"compiles": self.compiles, "operations": None}


if __name__ == "__main__":
    serve(Torch)
