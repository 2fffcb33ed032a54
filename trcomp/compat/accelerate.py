"""accelerate, changed as it is imported, where it goes another way on XLA than elsewhere.

It refuses to gather objects, though it broadcasts them; they meet on the host, in the same way. It
finds an optimizer's parameters again by their names, which `torch.compile` changes meanwhile. And
it gives a shuffled loader a generator of its own, drawn at random, in the place of the script's:
the order is then another than on a CPU or GPU, and a script that seeds its generator seeds nothing.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from trcomp.changes import when_imported


def _gather_objects(operations: Any) -> None:
    gather = operations.gather_object

    def gather_object(object: Any) -> Any:
        state = operations.PartialState()
        if state.distributed_type != operations.DistributedType.XLA:
            return gather(object)
        if state.num_processes == 1:
            return object
        return operations.xm.mesh_reduce(
            "accelerate.gather_object", object, lambda parts: list(chain.from_iterable(parts))
        )

    gather_object.__doc__ = gather.__doc__
    operations.gather_object = gather_object


def _name_as_before_compiling(module: Any) -> None:
    named = module.Accelerator._get_named_parameters

    def _get_named_parameters(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        found = named(self, *args, **kwargs)
        return {name.replace("_orig_mod.", ""): held for name, held in found.items()}

    module.Accelerator._get_named_parameters = _get_named_parameters


def _shuffle_as_elsewhere(module: Any) -> None:
    prepare = module.prepare_data_loader

    def prepare_data_loader(dataloader: Any, device: Any = None, *args: Any, **kwargs: Any) -> Any:
        state, kinds = module.PartialState(), module.DistributedType
        if state.distributed_type != kinds.XLA:
            return prepare(dataloader, device, *args, **kwargs)
        state.distributed_type = kinds.NO  # For this call: nothing else in it depends on it.
        try:
            prepared = prepare(dataloader, None, *args, **kwargs)
        finally:
            state.distributed_type = kinds.XLA
        return module.MpDeviceLoaderWrapper(prepared, device)

    prepare_data_loader.__doc__ = prepare.__doc__
    module.prepare_data_loader = prepare_data_loader


def install() -> None:
    """Change accelerate when it is imported."""
    when_imported(
        {
            "accelerate.utils.operations": _gather_objects,
            "accelerate.data_loader": _shuffle_as_elsewhere,
            "accelerate.accelerator": _name_as_before_compiling,
        }
    )
