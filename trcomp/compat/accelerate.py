"""accelerate, changed as it is imported, where it goes another way on XLA than elsewhere.

It refuses to gather objects, though it broadcasts them; they meet on the host, in the same way. And
it finds an optimizer's parameters again by their names, which `torch.compile` changes meanwhile.
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


def install() -> None:
    """Change accelerate when it is imported."""
    when_imported(
        {
            "accelerate.utils.operations": _gather_objects,
            "accelerate.accelerator": _name_as_before_compiling,
        }
    )
