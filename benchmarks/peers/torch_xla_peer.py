"""torch_xla on the CPU: … -m benchmarks.peers.torch_xla_peer MODEL lazy|openxla"""

from __future__ import annotations

import sys

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import transformers

from benchmarks.models import MODELS, Trainer
from benchmarks.peers.serving import serve


class TorchXla:
    """Traced operator by operator by its C++ tracer, or with the model compiled by `openxla`."""

    def __init__(self, name: str) -> None:
        torch.set_num_threads(2)
        self.versions = {
            "torch": torch.__version__,
            "torch_xla": torch_xla.__version__,
            "transformers": transformers.__version__,
        }
        self.trainer = Trainer(MODELS[name](), torch_xla.device())
        if sys.argv[2] == "openxla":
            self.trainer.model = torch.compile(self.trainer.model, backend="openxla")  # type: ignore[assignment]
        torch_xla.sync(wait=True)
        self.before = _compiles()
        self.operations = 0

    def step(self) -> torch.Tensor:
        """Trace a step."""
        before = _operations()
        loss = self.trainer.step()
        self.operations = _operations() - before
        return loss

    def start(self) -> None:
        """Find its executable, or compile it, and start it."""
        torch_xla.sync()

    def finish(self, loss: torch.Tensor) -> None:
        """Wait for the device."""
        xm.wait_device_ops()

    def value(self, loss: torch.Tensor) -> float:
        """A loss as a number."""
        return loss.item()

    def counts(self) -> dict[str, int | None]:
        """Executables compiled for steps, and operations of the last."""
        return {"compiles": _compiles() - self.before, "operations": self.operations}


def _compiles() -> int:
    data = met.metric_data("CompileTime")
    return 0 if data is None else data[0]


def _operations() -> int:
    names = [name for name in met.counter_names() if name.startswith(("xla::", "aten::"))]
    return sum(met.counter_value(name) for name in names)


if __name__ == "__main__":
    serve(TorchXla)
