"""`torch_xla.amp.autocast`: `torch.autocast` of this rank's device."""

from __future__ import annotations

from typing import Any

import torch


class autocast(torch.autocast):  # noqa: N801 - torch_xla's name
    """Run matrix products in half precision, what needs it in float32.

    Args:
        device: This rank's device.
        enabled: Whether to.
        dtype: bfloat16 (None) or float16.
        cache_enabled: Whether a weight is cast once per region.
    """

    def __init__(
        self,
        device: Any,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        cache_enabled: bool = True,
    ) -> None:
        super().__init__(torch.device(device).type, dtype or torch.bfloat16, enabled, cache_enabled)
