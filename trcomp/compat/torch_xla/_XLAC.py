"""The few names of torch_xla's C extension that libraries reach for."""  # noqa: N999

from __future__ import annotations

import torch


def _xla_get_tensor_id(tensor: torch.Tensor) -> int:
    """A number that tensors share exactly when they share their storage (tied weights do)."""
    return int(tensor.untyped_storage()._cdata)
