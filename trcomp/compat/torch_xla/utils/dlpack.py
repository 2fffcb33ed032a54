"""`torch_xla.utils.dlpack`: tensors to and from other libraries, as copies.

What a step computes with moves between buffers, so no memory can be shared.
"""

from __future__ import annotations

from typing import Any

import torch

import trcomp.runtime as rt

from .._missing import missing

__getattr__ = missing(__name__)


def to_dlpack(xla_tensor: torch.Tensor) -> Any:
    """A capsule with a copy of a tensor on the CPU; later writes to the tensor are not seen."""
    return torch._C._to_dlpack(xla_tensor.detach().cpu())


def from_dlpack(ext_tensor: Any) -> torch.Tensor:
    """A copy on the device of another library's tensor, or of a capsule."""
    shared: torch.Tensor = torch.utils.dlpack.from_dlpack(ext_tensor)
    return shared.to(rt.device())
