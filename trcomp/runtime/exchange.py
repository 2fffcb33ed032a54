"""Device tensors handed to others: another process gets a copy, other libraries a clear refusal."""

from __future__ import annotations

import pickle
from multiprocessing import reduction
from typing import Any, NoReturn

import torch
from torch.multiprocessing import reductions

from trcomp.errors import UnsupportedError
from trcomp.runtime.device import NAME, is_on_device


def _rebuild(cls: type[torch.Tensor], host: bytes, requires_grad: bool) -> torch.Tensor:
    tensor: torch.Tensor = pickle.loads(host).to(NAME)
    if issubclass(cls, torch.nn.Parameter):
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def _reduce(tensor: torch.Tensor) -> Any:
    """How a tensor travels to a process of `torch.multiprocessing`: by way of the host."""
    if not is_on_device(tensor):
        return reductions.reduce_tensor(tensor)
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "A tensor with a gradient history cannot be sent to another process; send "
            "tensor.detach()."
        )
    # As bytes: shared memory would have to outlive this call.
    return _rebuild, (type(tensor), pickle.dumps(tensor.detach().cpu()), tensor.requires_grad)


def _refuse(tensor: torch.Tensor) -> NoReturn:
    raise UnsupportedError(
        f"a tensor on {tensor.device} was asked for its memory (DLPack); what a step computes with "
        "moves between buffers, so none can be shared.",
        "Give a copy: tensor.detach().cpu().",
    )


def _refusing(method: Any) -> Any:
    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensor, torch.Tensor) and is_on_device(tensor):
            _refuse(tensor)
        return method(tensor, *args, **kwargs)

    return call


def register() -> None:
    """Answer for device tensors wherever torch would hand out their memory."""
    for cls in (torch.Tensor, torch.nn.Parameter):
        reduction.register(cls, _reduce)
    for name in ("__dlpack__", "__dlpack_device__"):
        setattr(torch.Tensor, name, _refusing(getattr(torch.Tensor, name)))
    to_dlpack = _refusing(torch._C._to_dlpack)
    for module in (torch, torch.utils.dlpack):
        setattr(module, "to_dlpack", to_dlpack)  # noqa: B010
