"""accelerate, changed as it is imported: objects are gathered from all ranks.

It refuses to on XLA, though it broadcasts objects there. They meet on the host, in the same way.
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


def install() -> None:
    """Change accelerate when it is imported."""
    when_imported({"accelerate.utils.operations": _gather_objects})
