"""The names of torch_xla's C extension that libraries and debugging scripts reach for."""  # noqa: N999

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import trcomp.runtime as rt

from ._missing import missing

__getattr__ = missing(__name__)

Tensors = Sequence[torch.Tensor] | None


def _xla_get_tensor_id(tensor: torch.Tensor) -> int:
    """A number that tensors share exactly when they share their storage (tied weights do)."""
    return int(tensor.untyped_storage()._cdata)


_xla_get_tensor_view_alias_id = _xla_get_tensor_id


def _xla_sync_multi(
    tensors: Sequence[torch.Tensor],
    devices: Sequence[str] = (),
    wait: bool = True,
    sync_xla_data: bool = True,
) -> None:
    """Compute the tensors, and with them all that is pending."""
    rt.settle()


def _xla_step_marker(
    device: Any = None, devices: Sequence[str] = (), wait: bool = True, reset_scope: bool = True
) -> None:
    rt.sync(wait)


def _xla_wait_device_ops(devices: Sequence[str] = ()) -> None:
    rt.settle()


def _xla_get_cpu_tensors(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies on the CPU."""
    rt.settle()
    return [tensor.detach().cpu() for tensor in tensors]


def _xla_get_devices() -> list[str]:
    return [str(rt.device())]


def _xla_get_default_device() -> str:
    return str(rt.device())


def _xla_real_devices(devices: Sequence[str] = ()) -> list[str]:
    from . import runtime

    return [f"{runtime.device_type()}:{rt.local_rank()}"]


def _xla_set_enable_alias_with_buffer_donor_config(should_alias: bool) -> None:
    """Accepted: what may be overwritten is found at every step."""


def _xla_get_enable_alias_with_buffer_donor_config() -> bool:
    return True


def _xla_set_mat_mul_precision(precision: str) -> None:
    from . import backends

    backends.set_mat_mul_precision(precision)


def _get_xla_tensors_text(tensors: Tensors) -> str:
    """The graph that computes pending tensors, as trcomp records it, and those computed already."""
    computed = [] if tensors is None else [t for t in tensors if not _is_pending(t)]
    lines = [f"{t.dtype}{list(t.size())} = xla::device_data" for t in computed]
    if tensors is None or len(computed) < len(tensors):
        lines.append(str(_graph(tensors)))
    return "\n".join(lines)


def _get_xla_tensor_debug_info(tensor: torch.Tensor) -> str:
    """What is known of a tensor: where it is, whether it is computed, and of what."""
    return "\n".join(
        [
            f"XLA Shape: {tensor.dtype}{list(tensor.size())}",
            f"Device: {tensor.device}",
            f"Pending: {_is_pending(tensor)}",
            f"IR: {_get_xla_tensors_text([tensor])}",
        ]
    )


def _get_executed_fallback_ops() -> list[str]:
    from .debug import metrics

    return metrics.executed_fallback_ops()


def _get_git_revs() -> dict[str, str]:
    return {"xla": "", "torch": torch.version.git_version or ""}


def _is_pending(tensor: torch.Tensor) -> bool:
    from trcomp.runtime import storage

    return storage.value_of(tensor).node is not None


def _get_xla_tensors_hlo(tensors: Tensors) -> str:
    """The program that computes pending tensors, as HLO text."""
    return str(_lowered(tensors).as_text(dialect="hlo"))


def _get_stablehlo(tensors: Tensors, *args: Any) -> str:
    """The program that computes pending tensors, as StableHLO text."""
    return str(_lowered(tensors).as_text())


def _get_stablehlo_bytecode(tensors: Tensors, *args: Any) -> bytes:
    """The program that computes pending tensors, as MLIR bytecode."""
    import io

    buffer = io.BytesIO()
    _lowered(tensors).compiler_ir("stablehlo").operation.write_bytecode(buffer)
    return buffer.getvalue()


def _graph(tensors: Tensors) -> Any:
    """The graph of these tensors, or of all that is pending; which stays pending.

    Raises:
        ValueError: Nothing is pending.
    """
    from trcomp.runtime import graph, ir, storage

    pending = ir.take_pending()
    ir.restore_pending(pending)
    if tensors is not None:
        pending = [storage.value_of(tensor) for tensor in tensors if _is_pending(tensor)]
    if not pending:
        raise ValueError("None of the tensors is pending: all of them have been computed.")
    return graph.build(pending, donate=False)


def _lowered(tensors: Tensors) -> Any:
    from trcomp.runtime import compiler

    return compiler.lower_graph(_graph(tensors))
