"""`torch_xla.backends`: how precisely float32 matrices are multiplied, as torch itself is told."""

from __future__ import annotations

import torch

_TO_TORCH = {"highest": "highest", "high": "high", "default": "medium"}


def set_mat_mul_precision(precision: str) -> None:
    """Choose the precision of float32 matrix products.

    Args:
        precision: highest, high or default: `torch.set_float32_matmul_precision`'s highest, high
            and medium.

    Raises:
        ValueError: It is none of these.
    """
    if precision not in _TO_TORCH:
        raise ValueError(f"got precision={precision!r}; allowed: {', '.join(_TO_TORCH)}.")
    torch.set_float32_matmul_precision(_TO_TORCH[precision])


def get_mat_mul_precision() -> str:
    """The precision of float32 matrix products: highest, high or default."""
    chosen = torch.get_float32_matmul_precision()
    return next(name for name, torchs in _TO_TORCH.items() if torchs == chosen)
