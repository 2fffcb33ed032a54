"""Lightning, changed as it is imported, where its own way would start ranks or cut steps.

The XLA strategy starts ranks and takes the process it runs in for their parent, which waits and is
rank 0 of none. Here all ranks run the script from its first line, as under torchrun: it launches
nothing, and each process is its rank before and after `fit` too.

The precision leaves half types to torch_xla's XLA_USE_BF16, which XLA tensors of trcomp do not
know. Here `bf16-true` and `16-true` convert the module, and `bf16-mixed` is autocast.

With several GPUs each step begins with a value that rank 0 sends over the device and all read:
whether it was told to stop. Read there it waits for the step before, and rank 1's signal is lost.
Here ranks agree on the host. And each metric that is averaged over the ranks waits for them first,
or goes by way of the host, in the middle of a step; here it is reduced in the step's graph.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from functools import wraps
from inspect import signature
from types import ModuleType
from typing import Any

from trcomp.changes import when_imported
from trcomp.env import variables

_TRAINERS = ("lightning.pytorch", "pytorch_lightning")
_FABRICS = ("lightning.fabric", "lightning_fabric")
_PACKAGES = (*_TRAINERS, *_FABRICS)


def _change_strategy(module: ModuleType) -> None:
    strategy = module.XLAStrategy
    _launch_nothing(strategy)
    # The Trainer's strategies reduce; Fabric's, which it does not derive from, reduce for all.
    _reduce_in_graph(strategy, "all_reduce" if hasattr(strategy, "all_reduce") else "reduce")


def _launch_nothing(strategy: Any) -> None:
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


def _reduce_in_graph(strategy: Any, name: str) -> None:
    reduce = getattr(strategy, name)
    usual = signature(reduce).parameters["reduce_op"].default

    @wraps(reduce)
    def reduced(self: Any, output: Any, group: Any = None, reduce_op: Any = usual) -> Any:
        import torch

        from trcomp.runtime import all_reduce

        by = reduce_op.lower() if isinstance(reduce_op, str) else reduce_op
        is_here = isinstance(output, torch.Tensor) and not output.is_cpu
        if not is_here or by not in ("sum", "mean", "avg", None, torch.distributed.ReduceOp.SUM):
            return reduce(self, output, group, reduce_op)
        total: Any = all_reduce("sum", output)
        return total / self.world_size if by in ("mean", "avg") else total

    setattr(strategy, name, reduced)


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


def _agree_to_stop_on_host(module: ModuleType) -> None:
    def _broadcast_sigterm_tensor(self: Any) -> None:
        import torch
        from torch import distributed

        told = torch.tensor(int(getattr(self.trainer._signal_connector, "was_told", False)))
        distributed.all_reduce(told, distributed.ReduceOp.MAX)
        if told:
            raise module.SIGTERMException

    module._TrainingEpochLoop._broadcast_sigterm_tensor = _broadcast_sigterm_tensor


def _note_signals_only(module: ModuleType) -> None:
    def _sigterm_notifier_fn(self: Any, signum: int, _: Any) -> None:
        from torch import distributed

        launcher = self.trainer.strategy.launcher
        if launcher is not None and not self.received_sigterm:
            launcher.kill(signum)
        self.was_told = True
        # A rank that trains among others goes on until all stop, at the next step.
        among_others = distributed.is_initialized() and self.trainer.world_size > 1
        self.received_sigterm = not (among_others and self.trainer.training)

    module._SignalConnector._sigterm_notifier_fn = _sigterm_notifier_fn


def _average_without_waiting(module: Any) -> None:
    sync = module._sync_ddp

    def _sync_ddp(result: Any, group: Any = None, reduce_op: Any = None) -> Any:
        from torch import distributed

        if result.is_cpu:
            return sync(result, group=group, reduce_op=reduce_op)
        if isinstance(reduce_op, str):
            name = reduce_op.upper()
            reduce_op = getattr(distributed.ReduceOp, "AVG" if name == "MEAN" else name)
        distributed.all_reduce(result, reduce_op or distributed.ReduceOp.SUM, group)
        return result

    module._sync_ddp = _sync_ddp


_CHANGES = {
    **{f"{package}.strategies.xla": _change_strategy for package in _PACKAGES},
    **{f"{package}.plugins.precision.xla": _take_half_types for package in _PACKAGES},
    **{f"{trainer}.loops.training_epoch_loop": _agree_to_stop_on_host for trainer in _TRAINERS},
    **{
        f"{trainer}.trainer.connectors.signal_connector": _note_signals_only
        for trainer in _TRAINERS
    },
    **{f"{fabric}.utilities.distributed": _average_without_waiting for fabric in _FABRICS},
}


def install() -> None:
    """Change Lightning when it is imported."""
    when_imported(_CHANGES)
