"""Lightning's XLA strategy and precision, changed as they are imported in a process that is a rank.

The strategy starts ranks and takes the process it runs in for their parent, which waits and is
rank 0 of none. Here all ranks run the script from its first line, as under torchrun: it launches
nothing, and each process is its rank before and after `fit` too.

The precision leaves half types to torch_xla's XLA_USE_BF16, which XLA tensors of trcomp do not
know. Here `bf16-true` and `16-true` convert the module, and `bf16-mixed` is autocast.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

from trcomp.changes import when_imported
from trcomp.env import variables


def _launch_nothing(module: ModuleType) -> None:
    strategy = module.XLAStrategy
    configure, teardown = strategy._configure_launcher, strategy.teardown

    def _configure_launcher(self: Any) -> None:
        configure(self)
        if variables.has_identity(os.environ):
            self._launcher = None
            self._launched = True

    def _teardown(self: Any) -> None:
        teardown(self)
        self._launched = self._launcher is None

    strategy._configure_launcher = _configure_launcher
    strategy.teardown = _teardown


def _take_half_types(module: ModuleType) -> None:
    plugin = module.XLAPrecision
    init, context = plugin.__init__, plugin.forward_context
    convert_module, convert_input = plugin.convert_module, plugin.convert_input

    def __init__(self: Any, precision: Any = "32-true") -> None:  # noqa: N807
        init(self, "32-true" if precision == "bf16-mixed" else precision)
        self.precision = precision

    def forward_context(self: Any) -> AbstractContextManager[Any]:
        import torch

        if self.precision != "bf16-mixed":
            return context(self)  # type: ignore[no-any-return]
        return torch.autocast("xla", dtype=torch.bfloat16)

    def _convert_module(self: Any, model: Any) -> Any:
        if self.precision in ("bf16-true", "16-true"):
            return model.to(self._desired_dtype)
        return convert_module(self, model)

    def _convert_input(self: Any, data: Any) -> Any:
        from trcomp.runtime.batches import map_tensors

        if self.precision not in ("bf16-true", "16-true"):
            return convert_input(self, data)
        wanted = self._desired_dtype
        return map_tensors(data, lambda t: t.to(wanted) if t.is_floating_point() else t)

    plugin.__init__, plugin.forward_context = __init__, forward_context
    plugin.convert_module, plugin.convert_input = _convert_module, _convert_input


_PACKAGES = ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric")
_CHANGES = {
    **{f"{package}.strategies.xla": _launch_nothing for package in _PACKAGES},
    **{f"{package}.plugins.precision.xla": _take_half_types for package in _PACKAGES},
}


def install() -> None:
    """Change Lightning when it is imported."""
    when_imported(_CHANGES)
